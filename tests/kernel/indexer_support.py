"""Random calls of the indexer's kernels, and the comparison with their references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from glm5_kernel.ops.indexer_logits import mqa_logits, paged_mqa_logits
from glm5_kernel.ops.indexer_reference import (
    mqa_logits_reference,
    pack_cache,
    paged_mqa_logits_reference,
    row_lengths,
)
from glm5_kernel.ops.topk import topk_indices
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POISON = 7.0
TOLERANCE = 1e-3 if torch.cuda.is_available() else 1e-5
"""Relative; a Hopper matrix instruction adds up e4m3 products with about 14 bits."""


def random_e4m3(*shape: int) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * 2).to(torch.float8_e4m3fn)


def random_weights(rows: int, heads: int) -> Tensor:
    """Of both signs, but so that no score is small against what it is the sum of."""
    return torch.randn(rows, heads, device=DEVICE) + 1


def random_int(low: int, high: int, size: tuple[int, ...]) -> Tensor:
    return torch.randint(low, high, size, device=DEVICE, dtype=torch.int32)


@dataclass(frozen=True)
class Paged:
    """What a random paged call looks like.

    Attributes:
        gap: bytes between the blocks of the cache.
        per_row: whether each row's length is given, in place of a request's last.
        extra: columns of the result beyond the longest context.
        four_dims: the cache as vLLM passes it.
    """

    batch: int = 2
    next_n: int = 1
    heads: int = 32
    context: int = 200
    blocks: int = 12
    gap: int = 0
    per_row: bool = False
    extra: int = 5
    four_dims: bool = False


def random_cache(blocks: int, gap: int) -> Tensor:
    """[blocks, 64, 132] uint8, its blocks `gap` bytes apart."""
    packed = pack_cache(random_e4m3(blocks, 64, 128), torch.rand(blocks, 64, device=DEVICE) + 0.1)
    room = torch.full((blocks, 64 * 132 + gap), 255, dtype=torch.uint8, device=DEVICE)
    room[:, : 64 * 132] = packed.view(blocks, -1)
    return room[:, : 64 * 132].view(blocks, 64, 132) if gap == 0 else strided(room)


def strided(room: Tensor) -> Tensor:
    return room.as_strided((room.shape[0], 64, 132), (room.shape[1], 132, 1))


def paged_arguments(shape: Paged) -> dict[str, Any]:
    """Arguments of `paged_mqa_logits` without `out`."""
    cache = random_cache(shape.blocks, shape.gap)
    lengths = random_int(shape.next_n, shape.context + 1, (shape.batch,))
    lengths[0] = shape.context
    if shape.per_row:
        lengths = row_lengths(lengths, shape.next_n).view(shape.batch, shape.next_n)
        lengths[-1, 0] = 0
    return {
        "q": random_e4m3(shape.batch, shape.next_n, shape.heads, 128),
        "kv_cache": cache.unsqueeze(2) if shape.four_dims else cache,
        "weights": random_weights(shape.batch * shape.next_n, shape.heads),
        "context_lens": lengths,
        "block_tables": random_int(0, shape.blocks, (shape.batch, -(-shape.context // 64))),
        "max_context": shape.context + shape.extra,
    }


def check_paged(arguments: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
    """Run into a poisoned result and compare; what lies beyond a row's length stays poisoned."""
    rows, columns = arguments["weights"].shape[0], arguments["max_context"]
    out = torch.full((rows, columns + 3), POISON, device=DEVICE)[:, :columns]
    got = paged_mqa_logits(**arguments, **more, out=out)
    assert got.data_ptr() == out.data_ptr()
    wanted = paged_mqa_logits_reference(**arguments)
    assert_close(got, wanted)
    assert bool((got[wanted.isneginf()] == POISON).all())


def prefill_arguments(rows: int, keys: int, heads: int = 32) -> dict[str, Any]:
    """Arguments of `mqa_logits`, with ranges of any length, some of them empty."""
    starts = random_int(0, keys, (rows,))
    ends = torch.minimum(starts + random_int(-5, keys, (rows,)), torch.tensor(keys, device=DEVICE))
    return {
        "q": random_e4m3(rows, heads, 128),
        "k": random_e4m3(keys, 128),
        "k_scale": torch.rand(keys, device=DEVICE) + 0.1,
        "weights": random_weights(rows, heads),
        "starts": starts,
        "ends": ends.int(),
    }


def check_prefill(arguments: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
    shape = (arguments["q"].shape[0], arguments["k"].shape[0])
    out = torch.full(shape, POISON, device=DEVICE)
    assert_close(mqa_logits(**arguments, **more, out=out), mqa_logits_reference(**arguments))


def assert_close(got: Tensor, wanted: Tensor) -> None:
    """Relative error of all scores together, and of each row that has any."""
    assert got.dtype == torch.float32
    inside = wanted.isfinite()
    wanted = wanted.masked_fill(~inside, 0)
    error = (got.double().masked_fill(~inside, 0) - wanted).norm(dim=-1)
    assert bool((error <= TOLERANCE * wanted.norm(dim=-1).clamp_min(1e-30)).all())


def check_topk(logits: Tensor, k: int, **ranges: Any) -> Tensor:  # noqa: ANN401
    """Select, and compare the multiset of values with torch.topk's row by row."""
    got = topk_indices(logits, k, **ranges)
    starts = ranges.get("starts")
    next_n = logits.shape[0] // max(1, ranges["ends"].shape[0])
    ends = row_lengths(ranges["ends"], next_n)
    for row in range(logits.shape[0]):
        start = 0 if starts is None else max(0, int(starts[row]))
        end = min(int(ends[row]), logits.shape[1])
        assert_selected(got[row], logits[row, start : max(start, end)], k)
    return got


def assert_selected(found: Tensor, values: Tensor, k: int) -> None:
    """`found` are k different positions of the largest values, then −1."""
    n = min(k, values.numel())
    chosen = found[:n].long()
    assert bool((found[n:] == -1).all())
    assert bool(((chosen >= 0) & (chosen < values.numel())).all())
    assert chosen.unique().numel() == n
    assert torch.equal(values[chosen].sort(descending=True).values, values.topk(n).values)
