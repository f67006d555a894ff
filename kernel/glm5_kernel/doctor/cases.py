"""Small random inputs for each kernel, and how far it is from its torch reference on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HEADS, LATENT, ROPE = 8, 512, 64
BLOCK, REQUESTS = 64, 2
TOPK = 2048
CONTEXT = 3000
"""Tokens of a request's KV cache: the last block is only partly filled."""


def sparse_mla_bf16(device: str) -> float:
    return _sparse_mla(device, torch.bfloat16, fp8=False)


def sparse_mla_fp16(device: str) -> float:
    return _sparse_mla(device, torch.float16, fp8=False)


def sparse_mla_fp8(device: str) -> float:
    return _sparse_mla(device, torch.bfloat16, fp8=True)


def _sparse_mla(device: str, dtype: torch.dtype, *, fp8: bool) -> float:
    """Called as vLLM does, with positions in a request and a block table: one full row, one with
    gaps, one that is short, one without a token. What no row names is NaN.
    """
    from glm5_kernel.ops.layouts import Fp8Layout, pack_fp8
    from glm5_kernel.ops.reference import sparse_mla_reference
    from glm5_kernel.ops.sparse_mla import sparse_mla

    random = _generator(device)
    pages = -(-CONTEXT // BLOCK)
    kv = torch.randn(REQUESTS * pages, BLOCK, LATENT + ROPE, generator=random, device=device)
    cache = pack_fp8(kv, Fp8Layout(LATENT, ROPE)) if fp8 else kv.to(dtype)
    table = torch.randperm(REQUESTS * pages, generator=random, device=device)
    table = table.view(REQUESTS, pages).int()
    cache[table[:, -1].long(), CONTEXT % BLOCK :] = 255 if fp8 else torch.nan
    q = torch.randn(4, HEADS, LATENT + ROPE, generator=random, device=device).to(dtype)
    indices = torch.stack(
        [torch.randperm(CONTEXT, generator=random, device=device)[:TOPK] for _ in range(4)]
    ).int()
    indices[1, ::3] = -1
    indices[3] = -1
    lengths = torch.tensor([TOPK, TOPK, 37, TOPK], dtype=torch.int32, device=device)
    requests = torch.tensor([0, 1, 1, 0], dtype=torch.int32, device=device)
    options: dict[str, Any] = {"lengths": lengths, "block_table": table, "request_ids": requests}
    scale = (LATENT + ROPE) ** -0.5
    got = sparse_mla(q, cache, indices, scale, **options)
    return _attention_error(got, sparse_mla_reference(q, cache, indices, scale, **options))


def merge(device: str) -> float:
    """Three shards of which one row has none, against attention over all of them."""
    from glm5_kernel.ops.merge import merge_partials

    random = _generator(device)
    outs = torch.randn(3, 4, HEADS, LATENT, generator=random, device=device).bfloat16()
    lses = torch.randn(3, 4, HEADS, generator=random, device=device) * 4
    lses[1, 0], lses[:, 3] = -torch.inf, -torch.inf
    outs[1, 0] = torch.nan
    lse = torch.logsumexp(lses.double(), 0)
    weights = torch.exp(lses.double() - lse.clamp_min(-1e300)).unsqueeze(-1)
    out = torch.where(weights > 0, outs.double() * weights, 0.0).sum(0)
    return _attention_error(merge_partials(outs, lses), (out, lse))


def _attention_error(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> float:
    """The larger of two: the output's, and the lse's in absolute terms."""
    (out, lse), (wanted_out, wanted_lse) = got, wanted
    empty = torch.isneginf(wanted_lse)
    if not torch.equal(torch.isneginf(lse), empty):
        return float("inf")
    lse_error = (lse.double() - wanted_lse)[~empty].abs().max()
    return max(_error(out, wanted_out), float(lse_error))


def _error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((got.double() - wanted.double()).abs().max() / wanted.abs().max())


def _generator(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(5)
