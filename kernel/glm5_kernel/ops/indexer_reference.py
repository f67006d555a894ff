"""The DSA indexer in plain PyTorch, in float64: what its kernels are tested against."""

from __future__ import annotations

import torch
from torch import Tensor


def scores_reference(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor) -> Tensor:
    """[M, H, D] queries and [N, D] keys -> [M, N] float64: Σ_h w_h · relu(q_h · k) · scale."""
    products = torch.einsum("mhd,nd->mhn", q.float().double(), k.float().double())
    summed = torch.einsum("mhn,mh->mn", products.relu(), weights.double())
    return summed * k_scale.double()


def mqa_logits_reference(
    q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, starts: Tensor, ends: Tensor
) -> Tensor:
    """Like `indexer_logits.mqa_logits`, with −inf outside each row's range; [M, N] float64."""
    columns = torch.arange(k.shape[0], device=k.device)
    inside = (columns >= starts[:, None]) & (columns < ends[:, None])
    scores = scores_reference(q, k, k_scale, weights)
    return scores.masked_fill(~inside, float("-inf"))


def unpack_cache(kv_cache: Tensor, dim: int = 128) -> tuple[Tensor, Tensor]:
    """[blocks, 64, (1,) D + 4] uint8 -> keys [blocks, 64, D] e4m3 and scales [blocks, 64] float32.

    A block holds the values of all its tokens first, then their scales (vLLM 0.26's
    `indexer_k_quant_and_cache`).
    """
    blocks, size = kv_cache.shape[:2]
    flat = kv_cache.reshape(blocks, size * (dim + 4))
    values = flat[:, : size * dim].contiguous().view(torch.float8_e4m3fn)
    scales = flat[:, size * dim :].contiguous().view(torch.float32)
    return values.view(blocks, size, dim), scales


def pack_cache(values: Tensor, scales: Tensor) -> Tensor:
    """The inverse of `unpack_cache`: [blocks, 64, D + 4] uint8."""
    blocks, size, dim = values.shape
    first = values.contiguous().view(torch.uint8).view(blocks, -1)
    second = scales.float().contiguous().view(torch.uint8).view(blocks, -1)
    return torch.cat([first, second], dim=1).view(blocks, size, dim + 4)


def row_lengths(context_lens: Tensor, next_n: int) -> Tensor:
    """[B] or [B, n] lengths -> one for each of the B · n rows."""
    if context_lens.ndim == 2:
        return context_lens.reshape(-1)
    back = torch.arange(1 - next_n, 1, dtype=context_lens.dtype, device=context_lens.device)
    return (context_lens[:, None] + back).reshape(-1)


def paged_mqa_logits_reference(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    *,
    max_context: int,
) -> Tensor:
    """Like `indexer_logits.paged_mqa_logits`, with −inf from each row's length on; float64."""
    batch, next_n, _, dim = q.shape
    keys, scales = unpack_cache(kv_cache, dim)
    lengths = row_lengths(context_lens, next_n).tolist()
    out = q.new_full((batch * next_n, max_context), float("-inf"), dtype=torch.float64)
    for row, length in enumerate(lengths):
        n = max(0, min(length, max_context))
        blocks = block_tables[row // next_n, : -(-n // 64)].long()
        k, scale = keys[blocks].reshape(-1, dim)[:n], scales[blocks].reshape(-1)[:n]
        query = q[row // next_n, row % next_n]
        out[row, :n] = scores_reference(query[None], k, scale, weights[row][None])[0]
    return out


def topk_reference(logits: Tensor, k: int, starts: Tensor, ends: Tensor) -> Tensor:
    """[R, k]: the k largest values of each row's range, descending, then −inf."""
    out = logits.new_full((logits.shape[0], k), float("-inf"))
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        values = logits[row, max(start, 0) : max(end, start, 0)]
        found = values.topk(min(k, values.numel())).values
        out[row, : found.numel()] = found
    return out
