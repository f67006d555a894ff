"""Scratch memory of the kernel, taken from the pool that vLLM's layers share."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from glm5_kernel.compat import api
from glm5_kernel.ops.sparse_mla import workspace_bytes


def reserve(
    max_tokens: int, heads: int, topk_indices: Tensor, *, fp8: bool, latent_dim: int
) -> int:
    """Bytes that any call needs, reserved now: the pool is locked once vLLM has warmed up."""
    needed = _needed(
        max_tokens, heads, topk_indices.shape[-1], fp8, latent_dim, topk_indices.device
    )
    if needed:
        api.current_workspace_manager().get_simultaneous(((needed,), torch.uint8))
    return needed


@functools.lru_cache(maxsize=8)
def _needed(
    max_tokens: int, heads: int, topk: int, fp8: bool, latent_dim: int, device: torch.device
) -> int:
    return workspace_bytes(max_tokens, heads, topk, fp8=fp8, latent_dim=latent_dim, device=device)
