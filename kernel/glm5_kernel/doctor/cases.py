"""Small random inputs for each kernel, and how far it is from its torch reference on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HEADS, LATENT, ROPE = 8, 512, 64
BLOCK, REQUESTS = 64, 2
INDEX_HEADS, INDEX_DIM = 32, 128
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


def paged_logits(device: str) -> float:
    """Two tokens of each request, as with speculative decoding; the last block partly filled."""
    from glm5_kernel.ops.indexer_logits import paged_mqa_logits
    from glm5_kernel.ops.indexer_reference import pack_cache, paged_mqa_logits_reference

    random = _generator(device)
    tokens, context = 2, 300
    pages = -(-context // BLOCK)
    q, weights = _index_queries(random, device, REQUESTS * tokens)
    keys, scales = _index_keys(random, device, REQUESTS * pages * BLOCK)
    cache = pack_cache(keys.view(-1, BLOCK, INDEX_DIM), scales.view(-1, BLOCK))
    table = torch.randperm(REQUESTS * pages, generator=random, device=device)
    table = table.view(REQUESTS, pages).int()
    lengths = torch.tensor([[context - 1, context], [70, 71]], dtype=torch.int32, device=device)
    arguments = (q.view(REQUESTS, tokens, *q.shape[1:]), cache, weights, lengths, table)
    got = paged_mqa_logits(*arguments, max_context=context)
    return _logits_error(got, paged_mqa_logits_reference(*arguments, max_context=context))


def prefill_logits(device: str) -> float:
    """A chunk of a prompt behind another request's keys."""
    from glm5_kernel.ops.indexer_logits import mqa_logits
    from glm5_kernel.ops.indexer_reference import mqa_logits_reference

    random = _generator(device)
    rows, keys = 20, 300
    q, weights = _index_queries(random, device, rows)
    k, scales = _index_keys(random, device, keys)
    starts = torch.full((rows,), 90, dtype=torch.int32, device=device)
    ends = torch.arange(keys - rows + 1, keys + 1, dtype=torch.int32, device=device)
    got = mqa_logits(q, k, scales, weights, starts, ends)
    return _logits_error(got, mqa_logits_reference(q, k, scales, weights, starts, ends))


def topk(device: str) -> float:
    """With many ties, a row that is shorter than k and an empty one; 0 or infinite: it is exact."""
    from glm5_kernel.ops.topk import topk_indices

    random = _generator(device)
    width = 9000
    logits = torch.randn(4, width, generator=random, device=device).mul(64).round().div(64)
    starts = torch.tensor([0, 130, 7, 500], dtype=torch.int32, device=device)
    ends = torch.tensor([width, width - 3, 900, 500], dtype=torch.int32, device=device)
    found = topk_indices(logits, TOPK, starts=starts, ends=ends).tolist()
    for row, start, end, indices in zip(logits, starts.tolist(), ends.tolist(), found, strict=True):
        inside = row[start:end]
        count = min(TOPK, inside.numel())
        chosen, rest = indices[:count], indices[count:]
        if len(set(chosen)) != count or any(index != -1 for index in rest):
            return float("inf")
        if count and not 0 <= min(chosen) <= max(chosen) < inside.numel():
            return float("inf")
        values = inside[torch.tensor(chosen, dtype=torch.long, device=device)]
        if not torch.equal(values.sort().values, inside.topk(count).values.sort().values):
            return float("inf")
    return 0.0


def _index_queries(random: torch.Generator, device: str, rows: int) -> tuple[Tensor, Tensor]:
    """q [rows, heads, dim] e4m3 and weights [rows, heads] float32."""
    shape = (rows, INDEX_HEADS, INDEX_DIM)
    q = torch.randn(*shape, generator=random, device=device).to(torch.float8_e4m3fn)
    return q, torch.randn(rows, INDEX_HEADS, generator=random, device=device)


def _index_keys(random: torch.Generator, device: str, number: int) -> tuple[Tensor, Tensor]:
    """k [number, dim] e4m3 and scales [number] float32."""
    k = torch.randn(number, INDEX_DIM, generator=random, device=device).to(torch.float8_e4m3fn)
    return k, torch.rand(number, generator=random, device=device) + 0.5


def _logits_error(got: Tensor, wanted: Tensor) -> float:
    """Where the reference has a number; what lies outside a row's range is not defined."""
    inside = torch.isfinite(wanted)
    return _error(got[inside], wanted[inside])


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
