"""The sparse MLA kernel on a CUDA device: the full set, fresh random inputs each run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from glm5_kernel.ops.configs import (
    MANY_HEADS,
    NARROW,
    NARROW_FP8,
    TWO_WARPS,
    TWO_WARPS_FP8,
    WIDE,
    Config,
    Plan,
)
from glm5_kernel.ops.layouts import Fp8Layout
from glm5_kernel.ops.sparse_mla import sparse_mla, workspace_bytes

from tests.kernel.support import Call, Shape, assert_close, random_call, random_int, random_pool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BASE = Shape(topk=2048, blocks=128, block_size=64)
LAYOUTS = {
    "bf16": replace(BASE),
    "fp16": replace(BASE, dtype=torch.float16),
    "fp8": replace(BASE, fp8=True),
    "fp8, fp16 queries": replace(BASE, fp8=True, dtype=torch.float16),
    "256 + 64": replace(BASE, latent_dim=256),
    "256 + 64, fp8": replace(BASE, latent_dim=256, fp8=True),
    "latent only": replace(BASE, rope_dim=0),
    "latent only, fp8": replace(BASE, rope_dim=0, fp8=True, row_bytes=656),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 8), (8, 16), (33, 8), (5, 64), (2, 128), (3, 1)])
def test_shapes(layout: str, tokens: int, heads: int) -> None:
    random_call(replace(LAYOUTS[layout], tokens=tokens, heads=heads)).check()


@pytest.mark.parametrize("tokens", [133, 270, 600])
@pytest.mark.parametrize("fp8", [False, True])
def test_large_batches(tokens: int, fp8: bool) -> None:
    random_call(replace(BASE, tokens=tokens, fp8=fp8, topk=512)).check()


@pytest.mark.parametrize("topk", [1, 5, 31, 32, 33, 64, 65, 100, 1000, 2047, 3000])
@pytest.mark.parametrize("fp8", [False, True])
def test_any_top_k(topk: int, fp8: bool) -> None:
    random_call(replace(BASE, topk=topk, fp8=fp8)).check()


@pytest.mark.parametrize(("block_size", "gap"), itertools.product([1, 7, 64, 256], [0, 3]))
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
def test_blocks(block_size: int, gap: int, local: bool, fp8: bool) -> None:
    shape = replace(
        BASE, block_size=block_size, block_gap=gap, local=local, fp8=fp8, lengths=True, topk=500
    )
    random_call(replace(shape, tokens=9, blocks=4096 // block_size)).check()


@pytest.mark.parametrize("masked", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("fp8", [False, True])
def test_masks(masked: float, fp8: bool) -> None:
    random_call(replace(BASE, tokens=12, masked=masked, fp8=fp8, lengths=True)).check()


PLANS: list[tuple[Config, bool]] = [
    (NARROW, False), (WIDE, False), (TWO_WARPS, False), (MANY_HEADS, False), (NARROW_FP8, True),
    (TWO_WARPS_FP8, True),
]  # fmt: skip


@pytest.mark.parametrize(("config", "fp8"), PLANS)
@pytest.mark.parametrize("splits", [1, 3, 64])
def test_every_configuration(config: Config, fp8: bool, splits: int) -> None:
    shared = torch.cuda.get_device_properties("cuda").shared_memory_per_block_optin
    if config.shared > shared:
        pytest.skip("more shared memory than this device has")
    call = random_call(replace(BASE, tokens=4, heads=40, fp8=fp8))
    call.check(force_plan=Plan.split(config, 2048, splits))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("share", [1, 7, 33, 130])
def test_shares_that_span_tokens(fp8: bool, local: bool, share: int) -> None:
    call = random_call(replace(BASE, tokens=7, fp8=fp8, local=local, blocks=96, lengths=True))
    call.check(force_plan=Plan(NARROW_FP8 if fp8 else NARROW, 64, share))


@pytest.mark.parametrize("fp8", [False, True])
def test_widening_is_exact(fp8: bool) -> None:
    """One slot per row: the output is that slot's latent part, for all values of a byte."""
    shape = Shape(tokens=4, heads=3, topk=1, fp8=fp8, blocks=1, block_size=4, dtype=torch.float16)
    call = random_call(shape)
    call.kv_cache = random_pool(shape)
    call.indices = torch.arange(4, device="cuda", dtype=torch.int32).view(4, 1)
    if fp8:
        values = torch.arange(256, device="cuda").to(torch.uint8)
        values[[0x7F, 0xFF]] = 0  # NaN
        call.kv_cache[0, :, :512] = values.repeat(2)
        call.kv_cache[0, :, 512:528] = torch.ones(4, device="cuda").view(torch.uint8)
    out, _ = call.run()
    wanted = call.reference()[0]
    assert torch.equal(out.double(), wanted)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("gap", [0, 1])
def test_a_pool_beyond_two_to_the_31(fp8: bool, gap: int) -> None:
    """3.8 M slots: slot × 576 and slot × 656 wrap in 32 bits; with a block stride, sooner."""
    blocks = 3_800_000 // 64
    row = Fp8Layout().row_bytes if fp8 else 576
    dtype = torch.uint8 if fp8 else torch.bfloat16
    pool = torch.zeros(blocks, 64 + gap, row, dtype=dtype, device="cuda")[:, :64]
    small = random_call(replace(BASE, tokens=2, fp8=fp8, blocks=8, masked=0.0, topk=300))
    pool[-8:] = small.kv_cache
    last = Call(
        small.shape, small.q, pool, small.indices + (blocks - 8) * 64, small.sm_scale, small.options
    )
    assert int(last.indices.max()) * row > 2**31
    assert_close(last.run(), small.reference(), torch.bfloat16)


@pytest.mark.parametrize("fp8", [False, True])
def test_deterministic_rows_do_not_depend_on_the_batch(fp8: bool) -> None:
    call = random_call(replace(BASE, tokens=300, fp8=fp8, topk=700))
    out, lse = call.run(deterministic=True)
    for rows in (slice(0, 1), slice(5, 38), slice(150, 300)):
        got = sparse_mla(
            call.q[rows], call.kv_cache, call.indices[rows], call.sm_scale, deterministic=True
        )
        assert torch.equal(got[0], out[rows])
        assert torch.equal(got[1], lse[rows])


@pytest.mark.parametrize("fp8", [False, True])
def test_runs_are_bit_equal(fp8: bool) -> None:
    call = random_call(replace(BASE, tokens=40, fp8=fp8))
    first = call.run()
    for _ in range(20):
        again = call.run()
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("fp8", [False, True])
def test_a_graph_replays_a_thousand_times(fp8: bool) -> None:
    """Captured at eight rows; data, indices and lengths change, padded rows carry garbage."""
    shape = replace(BASE, tokens=8, heads=16, fp8=fp8, local=True, lengths=True, blocks=96)
    call = random_call(shape)
    call.kv_cache = random_pool(shape)
    out = call.q.new_empty(8, 16, 512)
    lse = torch.empty(8, 16, device="cuda")
    space = torch.empty(workspace_bytes(8, 16, 2048, fp8=fp8), dtype=torch.uint8, device="cuda")
    source = torch.randn_like(call.q)
    call.run(out=out, lse=lse, workspace=space)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.q.copy_(source)  # not a kernel that knows of early launches
        before = torch.cuda.memory_allocated()
        call.run(out=out, lse=lse, workspace=space)
        assert torch.cuda.memory_allocated() == before
    for step in range(1000):
        rows = 1 + step % 8
        source.normal_()
        call.indices.copy_(random_int(-1, 32 * 64, (8, 2048)))
        call.options["lengths"].copy_(random_int(0, 2049, (8,)))
        call.options["request_ids"].copy_(random_int(0, 3, (8,)))
        garbage(call, source, rows)
        space.fill_(255)
        out.fill_(torch.nan)
        graph.replay()
        eager = call.run()
        assert torch.equal(out[:rows], eager[0][:rows])
        assert torch.equal(lse[:rows], eager[1][:rows])
        assert bool(out[:rows].isfinite().all())


def garbage(call: Call, source: torch.Tensor, rows: int) -> None:
    """Whatever a buffer may hold behind the last row in use."""
    source[rows:] = torch.nan
    call.indices[rows:] = random_int(-(2**31), 2**31 - 1, (8 - rows, 2048))
    call.options["lengths"][rows:] = random_int(-(2**31), 2**31 - 1, (8 - rows,))
    call.options["request_ids"][rows:] = random_int(-(2**31), 2**31 - 1, (8 - rows,))


def test_nothing_is_allocated_when_all_is_passed() -> None:
    call = random_call(replace(BASE, tokens=8))
    out = call.q.new_empty(8, 8, 512)
    lse = torch.empty(8, 8, device="cuda")
    space = torch.empty(workspace_bytes(8, 8, 2048, fp8=False), dtype=torch.uint8, device="cuda")
    call.run(out=out, lse=lse, workspace=space)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    call.run(out=out, lse=lse, workspace=space)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_many_calls_in_a_row_share_a_workspace() -> None:
    """Each kernel may start before its predecessor ends: none may read or write too early."""
    calls = [random_call(replace(BASE, tokens=t, heads=16)) for t in (1, 8, 3, 40, 2)]
    wanted = [call.run() for call in calls]
    space = torch.empty(workspace_bytes(40, 16, 2048, fp8=False), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for _ in range(50):
        got = [call.run(workspace=space) for call in calls]
        for (out, lse), (wanted_out, wanted_lse) in zip(got, wanted, strict=True):
            assert torch.equal(out, wanted_out)
            assert torch.equal(lse, wanted_lse)


def test_a_cpu_tensor_is_refused() -> None:
    call = random_call(replace(BASE, tokens=1))
    with pytest.raises(ValueError, match="q: got a tensor on cpu; allowed: a CUDA device"):
        sparse_mla(call.q.cpu(), call.kv_cache, call.indices, 1.0)
