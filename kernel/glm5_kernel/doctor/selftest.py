"""Each kernel against its torch reference, on small shapes.

A GPU must have 1 GiB free: a CUDA context with the kernels' code takes up to 0.7 GiB of it, the
tests 128 MiB. Where it has less, as under a server that took nearly all, it is not touched at all
and the tests are skipped.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from glm5_kernel.doctor.child import Emit

NEEDED = 1 << 30
"""Bytes of a GPU that must be free before anything is done on it."""
ROOM = 128 << 20
"""Bytes that the tests take beside the context, at most."""
FULL = "GPU memory is full"
BUSY = "another process has the GPU for itself (compute mode)"


@dataclass(frozen=True)
class SelfTest:
    """One kernel's test.

    Attributes:
        case: name of the function in `cases` that gives the error on a device: of everything that
            is compared, the largest difference over the largest value.
        limit: what the error may be.
        since: the least capability it runs on.
    """

    name: str
    case: str
    limit: float
    since: tuple[int, int] = (8, 0)

    def error(self, device: str) -> float:
        case: Callable[[str], float] = getattr(import_module(_CASES), self.case)
        return case(device)


_CASES = "glm5_kernel.doctor.cases"
TESTS = (
    SelfTest("sparse MLA, bf16", "sparse_mla_bf16", 1e-2),
    SelfTest("sparse MLA, fp16", "sparse_mla_fp16", 2e-3),
    SelfTest("sparse MLA, fp8_ds_mla", "sparse_mla_fp8", 1e-2),
    SelfTest("merge", "merge", 1e-2),
    SelfTest("indexer, paged logits", "paged_logits", 5e-3, since=(8, 9)),
    SelfTest("indexer, prefill logits", "prefill_logits", 5e-3, since=(8, 9)),
    SelfTest("indexer, top-k", "topk", 0.0),
)


def answer(emit: Emit, index: int, names: Sequence[str]) -> None:
    """In a child: run the named tests on one GPU; ends early once its context is of no more use."""
    import torch

    device = f"cuda:{index}"
    try:
        torch.cuda.set_device(device)
        free, _ = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        reason = unavailable(error)
        if reason is None:
            raise
        emit({"unavailable": reason})
        return
    if free < ROOM:
        emit({"unavailable": FULL})
        return
    level = torch.cuda.get_device_capability(device)
    chosen = [test for test in TESTS if test.name in names]
    for test in chosen:
        emit({"begin": test.name})
        emit({"name": test.name} | one(test, device, level))
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return


def one(test: SelfTest, device: str, level: tuple[int, int]) -> dict[str, Any]:
    """Status, detail and perhaps a hint of one test; whatever it raises is a failure."""
    if level < test.since:
        text = f"needs capability {test.since[0]}.{test.since[1]}"
        return {"status": "skipped", "detail": text}
    try:
        error = test.error(device)
    except Exception as problem:
        reason = unavailable(problem)
        if reason is not None:
            return {"status": "skipped", "detail": reason}
        traceback.print_exc()
        return {"status": "failed", "detail": first_line(problem), "hint": hint_for(problem)}
    # "not" so that NaN fails.
    if not error <= test.limit:
        hint = "the kernel computes wrong numbers on this GPU: do not serve with it; report this"
        detail = f"error {error:.1e}, limit {test.limit:.0e}"
        return {"status": "failed", "detail": detail, "hint": hint, "error": error}
    return {"status": "passed", "error": error}


def unavailable(problem: Exception) -> str | None:
    """Why a GPU cannot be tested now, where this is what the problem means."""
    text = str(problem).lower()
    if "out of memory" in text:
        return FULL
    if "busy or unavailable" in text:
        return BUSY
    return None


def first_line(problem: Exception) -> str:
    """A problem in a line: its type and the first line that says something."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    # Triton shows the source first and the reason last.
    text = lines[-1] if type(problem).__name__ == "CompilationError" else "".join(lines[:1])
    return f"{type(problem).__name__}: {text}"[:300].removesuffix(": ")


def hint_for(problem: Exception) -> str:
    """What to do about a test that raised."""
    text = f"{type(problem).__name__} {problem}"
    if isinstance(problem, ImportError):
        return "torch and triton must be installed as vLLM wants them; install the lock anew"
    if "compiler" in text or "Python.h" in text or "CalledProcessError" in text:
        return "Triton builds its launcher at run time: see the row of the C compiler"
    if "no kernel image" in text or "PTX" in text:
        return "the driver is too old for this triton, or triton for this GPU"
    if "OutOfResources" in text:
        return "this GPU has less shared memory than the configuration takes; report this"
    return "report this with the output of `python -m glm5_kernel doctor --json`"
