"""vLLM's two CUDA ops on the indexer's cache, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

PAGE, DIMS = 64, 128
VALUES = PAGE * DIMS
"""Bytes of a block before its scales."""


def quantised(k: Tensor) -> tuple[Tensor, Tensor]:
    """[N, 128] -> e4m3 values and float32 scales [N], powers of two (ue8m0)."""
    scale = torch.exp2(torch.ceil(torch.log2(k.float().abs().amax(-1).clamp_min(1e-4) / 448)))
    return (k.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def insert(k: Tensor, kv_cache: Tensor, slots: Tensor, block: int, scale_fmt: str) -> None:
    """`indexer_k_quant_and_cache`."""
    assert (block, scale_fmt) == (DIMS, "ue8m0")
    assert k.shape[0] == slots.shape[0]
    values, scales = quantised(k)
    flat = kv_cache.view(kv_cache.shape[0], -1)
    for value, scale, slot in zip(values, scales, slots.tolist(), strict=True):
        page, at = divmod(slot, PAGE)
        flat[page, at * DIMS : (at + 1) * DIMS] = value.view(torch.uint8)
        flat[page, VALUES + at * 4 : VALUES + (at + 1) * 4] = scale.view(1).view(torch.uint8)


def gather(kv_cache: Tensor, values: Tensor, scales: Tensor, table: Tensor, ends: Tensor) -> None:
    """`cp_gather_indexer_k_quant_cache`: each request's tokens one after the other."""
    flat = kv_cache.view(kv_cache.shape[0], -1)
    assert int(ends[-1]) <= values.shape[0] == scales.shape[0]
    for request in range(len(ends) - 1):
        for position in range(int(ends[request + 1] - ends[request])):
            page, at = int(table[request, position // PAGE]), position % PAGE
            row = int(ends[request]) + position
            values[row] = flat[page, at * DIMS : (at + 1) * DIMS].view(torch.float8_e4m3fn)
            scales[row] = flat[page, VALUES + at * 4 : VALUES + (at + 1) * 4]
