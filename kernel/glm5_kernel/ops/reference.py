"""Sparse MLA attention in plain float64 torch: what the kernels are checked against."""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_kernel.ops.layouts import Fp8Layout, unpack_fp8


def sparse_mla_reference(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    sm_scale: float,
    *,
    latent_dim: int = 512,
    rope_dim: int = 64,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    request_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of each query token over the KV slots chosen for it, row by row.

    The arguments are those of `sparse_mla.sparse_mla`. Only slots that are named are ever read.

    Returns:
        out [T, H, latent_dim] and lse [T, H] (natural log), both float64.
    """
    tokens, heads, _ = q.shape
    out = torch.zeros(tokens, heads, latent_dim, dtype=torch.float64, device=q.device)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float64, device=q.device)
    for t in range(tokens):
        row = indices[t] if lengths is None else indices[t, : max(int(lengths[t]), 0)]
        slots = row[row >= 0].long()
        if block_table is not None:
            assert request_ids is not None
            slots = _physical(slots, block_table[int(request_ids[t])], kv_cache.shape[1])
        if slots.numel() == 0:
            continue
        kv = gather_rows(kv_cache, slots, latent_dim, rope_dim)  # [K, latent + rope]
        scores = q[t].double() @ kv.T * sm_scale  # [H, K]
        lse[t] = torch.logsumexp(scores, dim=-1)
        out[t] = torch.softmax(scores, dim=-1) @ kv[:, :latent_dim]
    return out, lse


def gather_rows(kv_cache: Tensor, slots: Tensor, latent_dim: int, rope_dim: int) -> Tensor:
    """KV rows of physical slots [K] (int64) as float64 [K, latent_dim + rope_dim]."""
    block_size = kv_cache.shape[1]
    rows = kv_cache[slots // block_size, slots % block_size]
    if rows.dtype == torch.uint8:
        return unpack_fp8(rows, Fp8Layout(latent_dim, rope_dim))
    return rows.double()


def _physical(positions: Tensor, pages: Tensor, block_size: int) -> Tensor:
    return pages[positions // block_size].long() * block_size + positions % block_size
