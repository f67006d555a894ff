"""Whose indexer runs in this process: ours or the stock one, and why."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Literal

from glm5_kernel.settings import Settings, read_settings

logger = logging.getLogger("vllm.glm5_kernel")


@dataclass(frozen=True)
class Decision:
    """An indexer.

    Args:
        name: triton is ours.
        reason: one phrase for the log.
    """

    name: Literal["triton", "stock"]
    reason: str


@functools.cache
def chosen_indexer() -> Decision:
    """The decision of this process, taken once, when the first layer is built on its GPU."""
    import torch

    settings = read_settings()
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    decision = decide(settings, capability)
    logger.info("glm5_kernel: the indexer is %s: %s", decision.name, decision.reason)
    return decision


def decide(settings: Settings, capability: tuple[int, int] | None) -> Decision:
    """Ours where it is asked for, on capability 12.x, and where DeepGEMM does not work."""
    if settings.indexer != "auto":
        return Decision(settings.indexer, f"GLM5_INDEXER={settings.indexer}")
    if capability is None:
        return Decision("stock", "there is no GPU")
    if capability[0] == 12:
        return Decision("triton", "the GPU has capability 12.x")
    from glm5_kernel.indexer.deepgemm import problem

    found = problem()
    if found is None:
        return Decision("stock", "DeepGEMM passed its self-test")
    return Decision("triton", f"DeepGEMM does not work here ({found})")
