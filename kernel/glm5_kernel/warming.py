"""When the kernels are compiled: while vLLM loads, once in a process; no start fails for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

import torch

from glm5_kernel.ops.checks import INTERPRET

logger = logging.getLogger("vllm.glm5_kernel")
_done: set[Hashable] = set()


def warm_once(what: str, key: Hashable, call: Callable[[], int]) -> None:
    """Call what compiles kernels, unless it has been called for `key`.

    Where it fails, the log says so, and the kernels are compiled when they are first needed.

    Args:
        what: of the kernels, for the log.
        call: gives how many forms it called.
    """
    if INTERPRET or (what, key) in _done or torch.cuda.is_current_stream_capturing():
        return
    _done.add((what, key))
    begin = time.monotonic()
    try:
        forms = call()
        torch.cuda.synchronize()
    except Exception:
        logger.warning("glm5_kernel: %s is compiled while serving", what, exc_info=True)
        return
    seconds = time.monotonic() - begin
    logger.info("glm5_kernel: %s ready in %d forms, %.1f s", what, forms, seconds)
