"""Scratch memory of the kernel, taken from the pool that vLLM's layers share."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from glm5_kernel.attention.limits import DETERMINISTIC_TOKENS
from glm5_kernel.compat import api
from glm5_kernel.ops.sparse_mla import workspace_bytes


def reserve(
    max_tokens: int,
    heads: int,
    topk_indices: Tensor,
    *,
    fp8: bool,
    latent_dim: int,
    deterministic: bool,
) -> int:
    """Bytes that any call needs, reserved now: the pool is locked once vLLM has warmed up."""
    tokens = min(max_tokens, DETERMINISTIC_TOKENS) if deterministic else max_tokens
    device = topk_indices.device
    needed = _needed(tokens, heads, topk_indices.shape[-1], fp8, latent_dim, device, deterministic)
    take(needed)
    return needed


def take(size: int) -> Tensor | None:
    """That many bytes of the pool, uint8; None for none."""
    if not size:
        return None
    (found,) = api.current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    workspace: Tensor = found
    return workspace


@functools.lru_cache(maxsize=8)
def _needed(
    tokens: int,
    heads: int,
    topk: int,
    fp8: bool,
    latent_dim: int,
    device: torch.device,
    deterministic: bool,
) -> int:
    return workspace_bytes(
        tokens, heads, topk, fp8=fp8, latent_dim=latent_dim, device=device,
        deterministic=deterministic,
    )  # fmt: skip
