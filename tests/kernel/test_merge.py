"""Merging shards: what context parallelism adds up is what one rank would have computed."""

from __future__ import annotations

import pytest
import torch
from glm5_kernel.ops.merge import merge_partials

from tests.kernel.support import DEVICE, Shape, assert_close, random_call


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_of_one_list_merge_to_the_whole(dtype: torch.dtype) -> None:
    call = random_call(Shape(dtype=dtype, topk=90))
    call.indices[0, :60] = -1  # empty in two shards
    call.indices[1] = -1  # empty in all
    wanted = call.reference()
    parts = []
    for indices in call.indices.split(30, dim=1):
        call.indices = indices.contiguous()
        parts.append(call.run())
    outs, lses = (torch.stack(part) for part in zip(*parts, strict=True))
    assert_close(merge_partials(outs, lses), wanted, dtype)


def test_an_empty_shard_does_not_count_whatever_it_holds() -> None:
    outs = torch.randn(3, 2, 4, 128, device=DEVICE).bfloat16()
    lses = torch.randn(3, 2, 4, device=DEVICE)
    outs[1] = torch.nan
    lses[1] = -torch.inf
    got = merge_partials(outs, lses)
    wanted = merge_partials(outs[[0, 2]].contiguous(), lses[[0, 2]].contiguous())
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])


def test_only_empty_shards_give_an_empty_result() -> None:
    outs = torch.full((2, 1, 4, 256), torch.nan, device=DEVICE).half()
    out, lse = merge_partials(outs, torch.full((2, 1, 4), -torch.inf, device=DEVICE))
    assert bool((out == 0).all())
    assert bool(torch.isneginf(lse).all())


def test_a_single_shard_is_unchanged() -> None:
    outs = torch.randn(1, 2, 4, 128, device=DEVICE).bfloat16()
    lses = torch.randn(1, 2, 4, device=DEVICE)
    out, lse = merge_partials(outs, lses)
    assert torch.equal(out, outs[0])
    assert torch.allclose(lse, lses[0])


def test_large_log_sums_do_not_overflow() -> None:
    outs = torch.ones(2, 1, 1, 128, device=DEVICE).bfloat16()
    out, lse = merge_partials(outs, torch.full((2, 1, 1), 1e4, device=DEVICE))
    assert bool((out == 1).all())
    assert abs(float(lse) - 1e4 - 0.6931) < 1e-2
