"""The sparse MLA kernel against the float64 reference, on small shapes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from glm5_kernel.ops.configs import NARROW, TWO_WARPS, TWO_WARPS_FP8, Plan
from glm5_kernel.ops.sparse_mla import sparse_mla

from tests.kernel.support import (
    DEVICE,
    Shape,
    assert_close,
    random_call,
    random_int,
    random_pool,
    spoil_unused,
)

SHAPES = {
    "one head": Shape(tokens=1, heads=1),
    "a top-k of one": Shape(topk=1),
    "a top-k of a tile and one": Shape(topk=33),
    "17 heads": Shape(heads=17, tokens=2),
    "128 heads": Shape(heads=128, tokens=1, topk=40),
    "fp16": Shape(dtype=torch.float16),
    "fp8": Shape(fp8=True),
    "fp8, fp16 queries": Shape(fp8=True, dtype=torch.float16),
    "256 + 64": Shape(latent_dim=256),
    "256 + 64, fp8, rows at 8 bytes": Shape(latent_dim=256, fp8=True),
    "latent only": Shape(rope_dim=0),
    "latent only, fp8 rows of 656 bytes": Shape(rope_dim=0, fp8=True, row_bytes=656),
    "blocks of 7": Shape(block_size=7),
    "blocks apart": Shape(block_gap=3),
    "blocks apart, fp8": Shape(block_gap=1, fp8=True),
    "positions": Shape(local=True),
    "positions, lengths, fp8, blocks of 5 apart": Shape(
        local=True, lengths=True, fp8=True, block_size=5, block_gap=2
    ),
    "lengths": Shape(lengths=True, tokens=5),
    "mostly masked": Shape(masked=0.97, tokens=4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_reference(name: str) -> None:
    random_call(SHAPES[name]).check()


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        Plan.split(NARROW, 100, 1),
        Plan.split(NARROW, 100, 4),
        Plan(NARROW, 4, 3),
        Plan(NARROW, 4, 7),
    ],
    ids=["one part", "four parts", "shares over two tokens", "shares longer than a token"],
)
def test_any_sharing_gives_the_same(plan: Plan, fp8: bool) -> None:
    random_call(Shape(tokens=4, topk=100, fp8=fp8, lengths=True)).check(force_plan=plan)


@pytest.mark.parametrize("fp8", [False, True])
def test_programs_share_a_short_row_evenly(fp8: bool) -> None:
    """Of two programs with six tiles each the second works, too, where a row has two tiles."""
    call = random_call(Shape(tokens=5, topk=192, fp8=fp8, masked=0.0, local=True))
    call.options["lengths"] = torch.tensor([0, 1, 17, 100, 192], dtype=torch.int32, device=DEVICE)
    spoil_unused(call)
    plan = Plan.split(TWO_WARPS_FP8 if fp8 else replace(TWO_WARPS, tile=16), 192, 2)
    size = 5 * 8 * plan.parts
    workspace = torch.zeros(size * 1028, dtype=torch.uint8, device=DEVICE)
    call.check(force_plan=plan, workspace=workspace)
    lses = workspace[size * 1024 :].view(torch.float32).view(5, 8, 2)[:, 0]
    assert lses.isfinite().tolist() == [
        [False] * 2,
        [True, False],
        [True] * 2,
        [True] * 2,
        [True] * 2,
    ]


def test_no_token() -> None:
    call = random_call(replace(Shape(), tokens=1))
    out, lse = sparse_mla(call.q[:0], call.kv_cache, call.indices[:0], 1.0)
    assert out.shape == (0, 8, 512)
    assert lse.shape == (0, 8)


def test_queries_as_a_pair() -> None:
    call = random_call(Shape())
    latent, rope = (part.contiguous() for part in call.q.split([512, 64], dim=-1))
    got = sparse_mla((latent, rope), call.kv_cache, call.indices, call.sm_scale)
    assert_close(got, call.reference(), torch.bfloat16)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_fp8_with_queries_that_fp16_cannot_hold(scale: float) -> None:
    call = random_call(Shape(fp8=True))
    call.q *= scale
    call.sm_scale /= scale
    call.check()


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_fp8_with_extreme_scales(scale: float) -> None:
    call = random_call(Shape(fp8=True, rope_dim=0, masked=0.0))
    scales = call.kv_cache[..., 512:528].clone().view(torch.float32)
    call.kv_cache[..., 512:528] = (scales * scale).view(torch.uint8)
    call.sm_scale /= scale
    call.check()


@pytest.mark.parametrize("fp8", [False, True])
def test_an_empty_row_gives_zeros_and_minus_infinity(fp8: bool) -> None:
    call = random_call(Shape(fp8=fp8))
    call.indices[1] = -1
    call.q[1] = torch.nan
    out, lse = call.run()
    assert bool((out[1] == 0).all())
    assert bool(torch.isneginf(lse[1]).all())
    assert bool(out[[0, 2]].isfinite().all())


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_queries_of_nan_give_nan_and_only_there(fp8: bool, parts: int) -> None:
    call = random_call(Shape(fp8=fp8, topk=90, masked=0.0))
    call.q[1, 2] = torch.nan
    out, lse = call.run(force_plan=Plan.split(NARROW, 90, parts))
    spoiled = torch.zeros(3, 8, dtype=torch.bool, device=DEVICE)
    spoiled[1, 2] = True
    assert torch.equal(out.isnan().all(-1), spoiled)
    assert torch.equal(out.isnan().any(-1), spoiled)
    assert torch.equal(lse.isnan(), spoiled)


def test_an_empty_row_stays_empty_in_every_split() -> None:
    call = random_call(Shape(topk=100))
    call.indices[0] = -1
    call.indices[2, :64] = -1  # whole tiles without a token, then some
    call.check(force_plan=Plan.split(NARROW, 100, 4))


@pytest.mark.parametrize("fp8", [False, True])
def test_unused_slots_are_never_read_into_a_result(fp8: bool) -> None:
    """NaN before the pool, behind it, in its first and last slot, and wherever no index points."""
    call = random_call(Shape(fp8=fp8))
    larger = random_pool(replace(call.shape, blocks=14))
    call.kv_cache = larger[1:13]
    call.indices = random_int(32, 64, (3, 70))
    call.indices[:, ::3] = -1
    wanted = call.reference()
    nan = 255 if fp8 else torch.nan
    larger[:3] = nan
    larger[5:] = nan
    assert_close(call.run(), wanted, torch.bfloat16)


@pytest.mark.parametrize("local", [False, True])
def test_what_is_out_of_range_is_no_token(local: bool) -> None:
    call = random_call(Shape(local=local, masked=0.0))
    wanted = call.reference()
    noise = torch.tensor([-1, -7, 10**6, 2**31 - 1, -(2**31)], dtype=torch.int32, device=DEVICE)
    call.indices = torch.cat([call.indices, noise.expand(3, -1)], dim=1).contiguous()
    assert_close(call.run(), wanted, torch.bfloat16)


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("fp8", [False, True])
def test_blocks_that_the_pool_lacks_are_no_tokens(fp8: bool, gap: int) -> None:
    """Times the block size, 2^28 and its double would be slot 0 again in 32 bits."""
    shape = Shape(fp8=fp8, blocks=5, block_size=48, block_gap=gap, local=True)
    call = random_call(shape)
    known = call.options["block_table"]
    wanted = call.reference()
    lacking = [-1, 5, 2**28, 2**29, 2**31 - 1, -(2**31), -(2**28)]
    more = torch.tensor(lacking, dtype=torch.int32, device=DEVICE).expand(known.shape[0], -1)
    call.options["block_table"] = torch.cat([known, more], dim=1).contiguous()
    call.indices = torch.cat([call.indices, random_int(48, 48 * 8, (3, 60))], dim=1).contiguous()
    assert_close(call.run(), wanted, torch.bfloat16)


def test_an_unknown_request_has_no_tokens() -> None:
    call = random_call(Shape(local=True))
    call.options["request_ids"][1] = 99
    call.options["request_ids"][2] = -1
    out, lse = call.run()
    assert bool((out[1:] == 0).all())
    assert bool(torch.isneginf(lse[1:]).all())


@pytest.mark.parametrize("plan", [None, Plan.split(replace(NARROW, tile=16), 170, 2)])
def test_lengths_out_of_range_are_clamped(plan: Plan | None) -> None:
    """Also where they decide what a program's share is."""
    call = random_call(Shape(topk=170, masked=0.0))
    whole = call.run(force_plan=plan)
    call.options["lengths"] = torch.tensor([-5, 10**6, 170], dtype=torch.int32, device=DEVICE)
    out, lse = call.run(force_plan=plan)
    assert bool(torch.isneginf(lse[0]).all())
    assert torch.equal(out[1:], whole[0][1:])


def test_lse_is_a_natural_logarithm() -> None:
    call = random_call(Shape(tokens=1, heads=1, topk=1, masked=0.0, dtype=torch.float16))
    _, lse = call.run()
    block, offset = divmod(int(call.indices[0, 0]), call.kv_cache.shape[1])
    score = call.q[0, 0].double() @ call.kv_cache[block, offset].double() * call.sm_scale
    assert math.isclose(float(lse), float(score), abs_tol=1e-3)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("tokens", "topk"), [(5, 300), (2, 1100)])
def test_deterministic_rows_do_not_depend_on_the_batch(tokens: int, topk: int, fp8: bool) -> None:
    """From five tiles a program on, as with the wider one, shares follow the lengths."""
    call = random_call(Shape(tokens=tokens, topk=topk, fp8=fp8, lengths=True))
    out, lse = call.run(deterministic=True)
    lengths = call.options["lengths"]
    for t in (0, tokens - 1):
        alone = sparse_mla(
            call.q[t : t + 1],
            call.kv_cache,
            call.indices[t : t + 1],
            call.sm_scale,
            lengths=lengths[t : t + 1],
            deterministic=True,
        )
        assert torch.equal(alone[0][0], out[t])
        assert torch.equal(alone[1][0], lse[t])


def test_a_passed_workspace_is_used() -> None:
    call = random_call(Shape(topk=100))
    plan = Plan.split(NARROW, 100, 4)
    size = 3 * 8 * 4 * (2 * 512 + 4)
    space = torch.zeros(size + 64, dtype=torch.uint8, device=DEVICE)
    call.check(force_plan=plan, workspace=space)
    assert bool(space[:size].any())
    assert not bool(space[size:].any())


def test_repeated_slots_count_each_time() -> None:
    call = random_call(Shape(masked=0.0))
    call.indices[:] = call.indices[:, :1]
    out, lse = call.run()
    single = replace(call.shape, topk=1)
    call.indices = call.indices[:, :1].contiguous()
    once = call.run()
    assert single.topk == 1
    assert torch.allclose(out, once[0], atol=2e-2)
    assert torch.allclose(lse, once[1] + math.log(70), atol=1e-3)


def test_indices_in_rows_of_a_larger_buffer() -> None:
    call = random_call(Shape())
    buffer = random_int(-1, 100, (3, 200))
    buffer[:, :70] = call.indices
    call.indices = buffer[:, :70]
    call.check()
