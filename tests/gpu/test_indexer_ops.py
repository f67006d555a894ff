"""The indexer's kernels on a CUDA device: the full set, fresh random inputs each run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from glm5_kernel.ops.indexer import decode_topk, prefill_topk
from glm5_kernel.ops.indexer_configs import PAGED, PREFILL, TOPK, TopkConfig, TopkPlan
from glm5_kernel.ops.indexer_logits import mqa_logits, paged_mqa_logits
from glm5_kernel.ops.indexer_reference import row_lengths
from glm5_kernel.ops.topk import topk_indices, workspace_bytes
from torch import Tensor

from tests.kernel.indexer_support import (
    Paged,
    assert_close,
    check_paged,
    check_prefill,
    paged_arguments,
    prefill_arguments,
    random_e4m3,
    random_int,
)
from tests.kernel.test_indexer_topk import KINDS, full, scores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BASE = Paged(batch=3, context=3000, blocks=100)


@pytest.mark.parametrize("heads", [4, 16, 32, 64])
@pytest.mark.parametrize("next_n", [1, 2, 3, 4])
@pytest.mark.parametrize("per_row", [False, True])
def test_paged_shapes(heads: int, next_n: int, per_row: bool) -> None:
    check_paged(paged_arguments(replace(BASE, heads=heads, next_n=next_n, per_row=per_row)))


@pytest.mark.parametrize("arch", sorted(PAGED))
def test_paged_configurations(arch: str) -> None:
    for config in PAGED[arch]:
        for gap in (0, 4, 64):
            arguments = paged_arguments(replace(BASE, next_n=2, gap=gap, four_dims=gap > 0))
            check_paged(arguments, force_config=config)


def test_many_requests_of_unlike_lengths() -> None:
    arguments = paged_arguments(replace(BASE, batch=300, context=700))
    arguments["context_lens"][::7] = 0
    check_paged(arguments)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (63, 1000), (130, 2049), (500, 300)])
@pytest.mark.parametrize("heads", [4, 32, 64, 128])
def test_prefill_shapes(rows: int, keys: int, heads: int) -> None:
    check_prefill(prefill_arguments(rows, keys, heads))


@pytest.mark.parametrize("arch", sorted(PREFILL))
def test_prefill_configurations(arch: str) -> None:
    check_prefill(prefill_arguments(100, 700), force_config=PREFILL[arch])


def test_a_cache_and_logits_beyond_two_to_the_31() -> None:
    """260 k blocks are 2.2e9 bytes; 3,000 rows 800,000 apart are 2.4e9 elements."""
    small = paged_arguments(replace(BASE, batch=2, context=500, blocks=8, gap=64))
    cache = torch.zeros(260_000, 64 * 132 + 64, dtype=torch.uint8, device="cuda")
    cache = cache.as_strided((260_000, 64, 132), (64 * 132 + 64, 132, 1))
    cache[-8:] = small["kv_cache"]
    wanted = paged_mqa_logits(**small, out=torch.zeros(2, 505, device="cuda"))
    tables = small["block_tables"] + (260_000 - 8)
    far = small | {"kv_cache": cache, "block_tables": tables}
    assert torch.equal(paged_mqa_logits(**far, out=torch.zeros(2, 505, device="cuda")), wanted)
    del cache, far
    room = torch.empty(3000 * 800_000, device="cuda")
    arguments = prefill_arguments(3000, 300)
    out = room.as_strided((3000, 300), (800_000, 1))
    near = mqa_logits(**arguments)
    mqa_logits(**arguments, out=out)
    inside = (torch.arange(300, device="cuda") >= arguments["starts"][:, None]) & (
        torch.arange(300, device="cuda") < arguments["ends"][:, None]
    )
    assert torch.equal(out[inside], near[inside])
    ranges = {"starts": arguments["starts"], "ends": arguments["ends"]}
    assert same_sets(topk_indices(out, 20, **ranges), topk_indices(near, 20, **ranges))


def same_sets(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.sort().values, b.sort().values)


def check_rows(logits: Tensor, k: int, found: Tensor) -> None:
    """Whole rows at once: k different positions of the values that torch.topk finds."""
    columns = logits.shape[1]
    assert bool(((found >= 0) & (found < columns)).all())
    ordered = found.sort().values
    assert bool((ordered[:, 1:] != ordered[:, :-1]).all())
    got = logits.gather(1, found.long()).sort(descending=True).values
    assert torch.equal(got, logits.topk(k).values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [512, 2048])
def test_topk_of_hard_rows(kind: str, k: int) -> None:
    shapes = ((3, 4000), (2, 8192), (7, 16_000), (1, 131_072), (9, 40_000), (300, 20_000))
    for rows, columns in shapes:
        logits = scores(kind, rows, columns)
        found = topk_indices(logits, k, ends=full(rows, columns))
        check_rows(logits, k, found)
        assert same_sets(topk_indices(logits, k, ends=full(rows, columns)), found)


@pytest.mark.parametrize("arch", sorted(TOPK))
def test_topk_configurations(arch: str) -> None:
    logits = scores("normal", 5, 30_000)
    for config in TOPK[arch].long:
        for plan in (TopkPlan(config, 7, True), TopkPlan(config, 3, False)):
            check_rows(logits, 2048, topk_indices(logits, 2048, ends=full(5, 30_000),
                                                  force_plan=plan))  # fmt: skip
    for short in TOPK[arch].short:
        for columns in (short.room, short.room - 33):
            logits = scores("normal", 5, columns)
            found = topk_indices(logits, 2048, ends=full(5, columns), force_plan=TopkPlan(short, 5))
            check_rows(logits, 2048, found)


def test_topk_where_the_sample_misleads() -> None:
    """All that is large lies where no sample of 4,096 looks often enough, or everywhere it does."""
    logits = scores("normal", 4, 200_000)
    logits[0, 70_000:72_100] += 50
    logits[1, :190_000] = -5
    logits[2, ::48] += 50
    logits[3] = torch.randint(0, 3, (200_000,), device="cuda").float()
    many = logits.repeat(3, 1)
    for k in (1, 512, 2048):
        check_rows(logits, k, topk_indices(logits, k, ends=full(4, 200_000)))
        for table in TOPK.values():
            # Each program does two rows or three, of different kinds.
            plan = TopkPlan(table.many, 5)
            check_rows(many, k, topk_indices(many, k, ends=full(12, 200_000), force_plan=plan))


def test_topk_ranges() -> None:
    for rows, columns in ((40, 12_000), (400, 12_000), (400, 40_000)):
        logits = scores("normal", rows, columns)
        starts = random_int(-10, columns // 2, (rows,))
        ends = starts + random_int(-5, columns * 3 // 4, (rows,))
        found = topk_indices(logits, 512, starts=starts, ends=ends)
        first, last = starts.clamp(0), ends.clamp(max=columns)
        column = torch.arange(columns, device="cuda")
        inside = (column >= first[:, None]) & (column < last[:, None])
        wanted = logits.masked_fill(~inside, -torch.inf).topk(512).values
        chosen = (found + first[:, None]).clamp(0, columns - 1).long()
        got = logits.gather(1, chosen).masked_fill(found < 0, -torch.inf)
        assert torch.equal(got.sort(descending=True).values, wanted)
        assert torch.equal((found >= 0).sum(1), (last - first).clamp(0, 512).long())


def test_a_graph_replays_with_other_lengths() -> None:
    """Captured once; lengths, tables and scores change, padded rows carry garbage."""
    shape = replace(BASE, batch=8, next_n=2, context=20_000, blocks=320)
    arguments = paged_arguments(shape) | {"context_lens": full(8, 20_000), "max_context": 20_000}
    space = torch.zeros(workspace_bytes(16), dtype=torch.uint8, device="cuda")
    out = torch.empty(16, 512, dtype=torch.int32, device="cuda")
    logits = torch.empty(16 * 20_000, device="cuda")
    more: dict[str, Any] = {"topk": 512, "out": out, "logits": logits, "workspace": space}
    decode_topk(**arguments, **more)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_allocated()
        decode_topk(**arguments, **more)
        assert torch.cuda.memory_allocated() == before
    for step in range(200):
        arguments["context_lens"].copy_(random_int(0, 20_001, (8,)) >> (step % 8))
        arguments["block_tables"].copy_(random_int(0, 320, (8, 313)))
        arguments["weights"].normal_(1)
        used = 1 + step % 8
        arguments["context_lens"][used:] = random_int(-(2**31), 2**31 - 1, (8 - used,))
        arguments["block_tables"][used:] = random_int(-(2**31), 2**31 - 1, (8 - used, 313))
        graph.replay()
        replayed = out.clone()
        assert not bool(space[: TopkConfig.counter_bytes].any())
        scored = paged_mqa_logits(**arguments)
        eager = topk_indices(scored, 512, ends=arguments["context_lens"])
        assert same_sets(replayed, eager)
        for row, length in enumerate(row_lengths(arguments["context_lens"][:used], 2).tolist()):
            values = scored[row, : max(0, length)]
            n = min(512, values.numel())
            got = values[replayed[row, :n].long()].sort(descending=True).values
            assert torch.equal(got, values.topk(n).values)


def test_nothing_is_allocated_when_all_is_passed() -> None:
    logits = scores("normal", 4, 20_000)
    space = torch.zeros(workspace_bytes(4), dtype=torch.uint8, device="cuda")
    out = torch.empty(4, 512, dtype=torch.int32, device="cuda")
    ends = full(4, 20_000)
    topk_indices(logits, 512, ends=ends, out=out, workspace=space)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    topk_indices(logits, 512, ends=ends, out=out, workspace=space)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_prefill_at_200_k_tokens_stays_within_its_memory() -> None:
    keys, rows = 200_000, 600
    arguments = prefill_arguments(rows, keys)
    arguments["starts"].fill_(0)
    arguments["ends"].copy_(torch.arange(keys - rows + 1, keys + 1))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = prefill_topk(**arguments, topk=2048)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= (256 << 20) + rows * 2048 * 4 + workspace_bytes(rows) + (1 << 20)
    for part in (slice(0, 3), slice(597, 600)):
        few = {name: arguments[name][part] for name in ("q", "weights", "starts", "ends")}
        logits = mqa_logits(**(arguments | few))
        for row, end in enumerate(few["ends"].tolist()):
            got = logits[row][found[part][row].long()].sort(descending=True).values
            assert torch.equal(got, logits[row, :end].topk(2048).values)


def deep_gemm() -> Any:  # noqa: ANN401
    pytest.importorskip("vllm")
    return pytest.importorskip("vllm.third_party.deep_gemm")


@pytest.mark.parametrize("next_n", [1, 2])
def test_paged_equals_deepgemm(next_n: int) -> None:
    peer = deep_gemm()
    arguments = paged_arguments(
        replace(BASE, batch=5, next_n=next_n, per_row=True, extra=8, four_dims=True)
    )
    lengths = arguments["context_lens"].contiguous()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    plan = peer.get_paged_mqa_logits_metadata(lengths, 64, processors)
    wanted = peer.fp8_fp4_paged_mqa_logits(
        (arguments["q"], None), arguments["kv_cache"], arguments["weights"], lengths,
        arguments["block_tables"], plan, arguments["max_context"], clean_logits=False,
    )  # fmt: skip
    got = paged_mqa_logits(**arguments)
    columns = torch.arange(arguments["max_context"], device="cuda")
    outside = columns >= lengths.reshape(-1, 1)
    assert_close(got, wanted.double().masked_fill(outside, -torch.inf))


def test_prefill_equals_deepgemm() -> None:
    peer = deep_gemm()
    a = prefill_arguments(300, 2048)
    a["ends"] = torch.maximum(a["starts"], a["ends"])
    wanted = peer.fp8_fp4_mqa_logits(
        (a["q"], None), (a["k"], a["k_scale"]), a["weights"], a["starts"], a["ends"],
        clean_logits=False,
    )  # fmt: skip
    columns = torch.arange(2048, device="cuda")
    outside = (columns < a["starts"][:, None]) | (columns >= a["ends"][:, None])
    assert_close(mqa_logits(**a), wanted.double().masked_fill(outside, -torch.inf))


def test_indices_count_from_the_start_as_vllm_counts_them() -> None:
    pytest.importorskip("vllm")
    import vllm._custom_ops  # noqa: F401

    logits = scores("normal", 20, 6000)
    starts, ends = random_int(0, 1000, (20,)), random_int(3500, 6000, (20,))
    out = torch.full((20, 512), -1, dtype=torch.int32, device="cuda")
    torch.ops._C.top_k_per_row_prefill(logits, starts, ends, out, 20, 6000, 1, 512)
    assert same_sets(topk_indices(logits, 512, starts=starts, ends=ends), out)


def test_a_cpu_tensor_is_refused() -> None:
    q = random_e4m3(1, 32, 128)
    with pytest.raises(ValueError, match="q: got a tensor on cpu; allowed: a CUDA device"):
        mqa_logits(q.cpu(), q[0], q[0, :, 0].float(), q[..., 0].float(), q, q)
