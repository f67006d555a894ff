"""Which GPUs torch sees, and what they are good for."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from glm5_kernel.doctor.child import Emit, Ended
from glm5_kernel.doctor.report import ABSENT, Check, Gpu, failed, passed, skipped

ATTENTION = (8, 0)
"""The least capability that the attention kernels compile for."""
SERVING = (8, 9)
"""The least that a sparse MLA model is served on."""


def answer(emit: Emit) -> None:
    """In a child: torch's version, then its GPUs. No GPU's memory is touched."""
    import torch

    emit({"torch": torch.__version__, "cuda": torch.version.cuda})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        # Why torch sees none (a driver that is too old, say) is in its warning, or told when it is
        # made to begin.
        emit({"none": str(said[-1].message) if said else _refusal(torch.cuda.init)})
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        capability = f"{found.major}.{found.minor}"
        emit({
            "gpu": {
                "index": index,
                "name": found.name,
                "capability": capability,
                "memory": found.total_memory,
                "uuid": str(getattr(found, "uuid", "")).removeprefix("GPU-"),
            }
        })  # fmt: skip


def _refusal(begin: Callable[[], None]) -> str:
    try:
        begin()
    except Exception as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return "it says no reason"


def gpus_of(ended: Ended, free: Mapping[str, int]) -> tuple[Gpu, ...]:
    """The GPUs that a child found.

    Args:
        free: bytes that nobody uses, by UUID.
    """
    found = (answer["gpu"] for answer in ended.answers if "gpu" in answer)
    return tuple(Gpu(**gpu, free=free.get(gpu["uuid"])) for gpu in found)


def torch_check(installed: str, ended: Ended) -> Check:
    """Whether torch can be imported."""
    name = "torch"
    if installed == ABSENT:
        return failed(name, "absent", "install vLLM into this environment: it brings its torch")
    found = next((a for a in ended.answers if "torch" in a), None)
    if found is None:
        hint = "install it anew: `python -c 'import torch'` must work here"
        if ended.returncode is None:
            hint = f"give it more time (--timeout); where that does not help, {hint}"
        return failed(name, f"{installed} cannot be imported: {ended.why()}", hint)
    built = f"CUDA {found['cuda']}" if found["cuda"] else "the CPU"
    return passed(name, f"{found['torch']}, built for {built}")


def gpu_check(
    ended: Ended, found: tuple[Gpu, ...], *, devices_there: bool, visible: str | None = None
) -> Check:
    """Whether torch sees the GPUs that the machine has.

    Args:
        devices_there: whether the NVIDIA driver offers a GPU to this process.
        visible: CUDA_VISIBLE_DEVICES, where it is set.
    """
    name = "GPUs"
    if found and ended.returncode == 0:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in found))
        return passed(name, f"{len(found)} × {names}")
    built = next((a["cuda"] for a in ended.answers if "torch" in a), None)
    if built is None or (ended.returncode == 0 and not devices_there):
        return skipped(name, "no GPU")
    why = next((a["none"] for a in ended.answers if "none" in a), "") or ended.why()
    hint = "a driver that is too old for torch's CUDA, or one that was updated without a reboot?"
    if visible and "No CUDA GPUs" in why:
        hint = (
            f"CUDA_VISIBLE_DEVICES={visible} names no GPU of this host: `nvidia-smi -L` lists them"
        )
    return failed(name, f"the driver has a GPU and torch cannot use it: {why}", hint)


def capability_check(gpus: tuple[Gpu, ...]) -> Check:
    """Whether these GPUs can serve a sparse MLA model."""
    name = "capability"
    if not gpus:
        return skipped(name, "no GPU")
    weak = [gpu for gpu in gpus if gpu.level < SERVING]
    if not weak:
        found = ", ".join(dict.fromkeys(gpu.capability for gpu in gpus))
        return passed(name, f"{found}; serving starts at 8.9")
    which = f"{weak[0].capability} (GPU {', '.join(str(gpu.index) for gpu in weak)})"
    if weak[0].level < ATTENTION:
        why = "the attention kernels need 8.0"
    else:
        why = (
            "the attention kernels run, but a sparse MLA model is not served: vLLM's own "
            "_fused_indexer_q_rope_quant_kernel needs fp8e4nv, which starts at 8.9"
        )
    return failed(name, f"{which}: {why}", "serve on GPUs of capability 8.9 or newer")
