"""A GPU that is not there, for a process of its own: Triton tells forms apart and compiles none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

GPUS = {"sm89": (8, 9, 142), "sm90": (9, 0, 132), "sm100": (10, 0, 148), "sm120": (12, 0, 188)}
"""Capability and processors."""

Form = tuple[str, str]
"""A kernel's name and Triton's key of what it would compile."""


def stand_in(arch: str, forms: set[Form]) -> None:
    """Let tensors of the CPU pass for a GPU's; what a call would launch or compile is noted.

    Kernels of others are neither noted nor launched.
    """
    import triton
    from glm5_kernel.ops import configs, indexer_logits, merge, sparse_mla, topk, warmup
    from glm5_kernel.ops.forms import forget
    from triton.backends.compiler import GPUTarget

    major, minor, processors = GPUS[arch]
    answers: dict[str, Any] = {
        "device_table": (arch, configs.Device(processors, configs.SHARED[arch])),
        "supports_pdl": major >= 9,
        "_has_fp8_conversion": (major, minor) >= (8, 9),
        "check_device": None,
    }
    for module in (indexer_logits, merge, sparse_mla, topk, warmup):
        for name in answers.keys() & vars(module).keys():
            setattr(module, name, lambda *_, answer=answers[name]: answer)

    forget()

    def note(*, key: str, fn: Any, **_: object) -> bool:  # noqa: ANN401
        if fn.module.startswith("glm5_kernel."):
            forms.add((fn.name, key))
        return True

    target = GPUTarget("cuda", 10 * major + minor, 32)
    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: target,
    )
    triton.runtime.driver.set_active(driver)
    triton.knobs.runtime.jit_cache_hook = note
