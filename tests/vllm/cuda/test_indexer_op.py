"""Our indexer behind vLLM's layer and its own metadata builder, against plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from glm5_kernel.compat import api
from glm5_kernel.indexer import choice, layer, op
from glm5_kernel.ops.indexer_reference import scores_reference, unpack_cache
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import ForwardContext
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.v1.attention.backends.mla import indexer as stock_metadata
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker import workspace

from tests.vllm.cuda import indexer_cache
from tests.vllm.cuda.batches import BLOCK, CPU, MAX_MODEL_LEN, PAGES, Batch, Request, configuration
from tests.vllm.cuda.gpu import FakeGpu

HEADS, DIMS, TOPK = 32, 128, 48
PREFIX = "model.layers.0.indexer.k_cache"


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch, pool: object) -> Iterator[None]:  # noqa: ARG001
    monkeypatch.setenv("GLM5_INDEXER", "triton")
    choice.chosen_indexer.cache_clear()
    monkeypatch.setattr(api.custom_ops, "indexer_k_quant_and_cache", indexer_cache.insert)
    monkeypatch.setattr(api.custom_ops, "cp_gather_indexer_k_quant_cache", indexer_cache.gather)
    yield
    choice.chosen_indexer.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _op_on_the_cpu() -> None:
    op._library.impl("sparse_attn_indexer", op.sparse_attn_indexer, dispatch_key="CPU")


def built(batch: Batch, draft_tokens: int) -> Any:  # noqa: ANN401
    """The batch's metadata by vLLM's own builder."""
    builder = stock_metadata.DeepseekV32IndexerMetadataBuilder
    more = {"block_table_width": PAGES} if getattr(builder, "requires_block_table_width", 0) else {}
    spec = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=132, dtype=torch.uint8)
    config = configuration(topk=TOPK, draft_tokens=draft_tokens)
    return builder(spec, [PREFIX], config, CPU, **more).build(0, batch.common())


class Case:
    """Random queries and keys of a batch, earlier keys in the cache already."""

    def __init__(self, batch: Batch, padding: int = 0) -> None:
        rows = batch.tokens + padding
        self.batch = batch
        self.q = (torch.randn(rows, HEADS, DIMS) * 2).to(torch.float8_e4m3fn)
        self.k = torch.randn(rows, DIMS).to(torch.bfloat16)
        self.weights = torch.randn(rows, HEADS)
        self.cache = torch.randint(0, 256, (batch.blocks, BLOCK, DIMS + 4), dtype=torch.uint8)
        for index, request in enumerate(batch.requests):
            slots = batch.slots(index, torch.arange(request.before))
            earlier = torch.randn(request.before, DIMS).to(torch.bfloat16)
            indexer_cache.insert(earlier, self.cache, slots, DIMS, "ue8m0")
        self.buffer = torch.full((rows + 4, TOPK), 77, dtype=torch.int32)

    def run(
        self,
        metadata: Any,  # noqa: ANN401
        monkeypatch: pytest.MonkeyPatch,
        context: ForwardContext | None = None,
    ) -> None:
        """Through the layer that vLLM builds, as its models call it; in a step of its own."""
        with set_current_vllm_config(VllmConfig()):
            k_cache = SimpleNamespace(prefix=PREFIX, kv_cache=self.cache)
            indexer = SparseAttnIndexer(
                k_cache, DIMS, "ue8m0", TOPK, DIMS, MAX_MODEL_LEN, 40 * MAX_MODEL_LEN, self.buffer
            )
        context = context or ForwardContext({}, {}, {})
        context.attn_metadata = {PREFIX: metadata}
        monkeypatch.setattr(api, "get_forward_context", lambda: context)
        hidden = torch.empty(self.q.shape[0], 8)
        found = indexer.forward_cuda(hidden, self.q, self.k, self.weights)
        assert found is self.buffer or torch.equal(found, self.buffer)

    def check(self) -> None:
        """Each row: the positions of the largest scores among its own past, −1 behind them."""
        keys, scales = unpack_cache(self.cache)
        for row, (index, position) in enumerate(self.batch.rows):
            slots = self.batch.slots(index, torch.arange(position + 1))
            k, scale = keys[slots // BLOCK, slots % BLOCK], scales[slots // BLOCK, slots % BLOCK]
            scores = scores_reference(self.q[row][None], k, scale, self.weights[row][None])[0]
            check_row(self.buffer[row], scores)
        assert bool((self.buffer[self.batch.tokens : self.q.shape[0]] == -1).all())
        assert bool((self.buffer[self.q.shape[0] :] == 77).all())


def check_row(found: Tensor, scores: Tensor) -> None:
    wanted = min(TOPK, scores.numel())
    positions = found[:wanted].long()
    assert bool((found[wanted:] == -1).all())
    assert int(positions.min()) >= 0
    assert int(positions.max()) < scores.numel()
    assert positions.unique().numel() == wanted
    best = scores.topk(wanted).values
    torch.testing.assert_close(
        scores[positions].sort(descending=True).values, best, rtol=1e-4, atol=1e-3
    )


BATCHES = {
    "decode": ((Request(1, 200), Request(1, 20), Request(1, 300)), 0),
    "one_request": ((Request(1, 0),), 0),
    "drafts": ((Request(2, 90), Request(2, 10), Request(2, 255)), 1),
    "drafts_and_padding": ((Request(2, 90), Request(2, 255), Request(0), Request(0)), 1),
    "many_drafts": ((Request(4, 90), Request(4, 255)), 3),
    "drafts_of_unlike_length": ((Request(1, 90), Request(3, 255), Request(4, 10)), 3),
    "prefill": ((Request(30), Request(70)), 0),
    "prefill_behind_a_prefix": ((Request(20, 128), Request(30, 7)), 0),
    "mixed": ((Request(1, 200), Request(1, 63), Request(20, 30), Request(60)), 0),
    "mixed_with_drafts": ((Request(2, 200), Request(2, 63), Request(20, 30), Request(9, 1)), 1),
}


PRIMARY = {"prefill", "prefill_behind_a_prefix", "many_drafts"}


@pytest.mark.parametrize(
    ("requests", "draft_tokens"),
    [
        pytest.param(*batch, id=name, marks=pytest.mark.primary if name in PRIMARY else ())
        for name, batch in BATCHES.items()
    ],
)
@pytest.mark.usefixtures("_seeded")
def test_each_token_gets_the_best_of_its_past(
    requests: tuple[Request, ...], draft_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(requests)
    case = Case(batch)
    case.run(built(batch, draft_tokens), monkeypatch)
    case.check()


SHORT = {
    "decode": ((Request(1, TOPK - 1), Request(1, 20)), 0),
    "drafts": ((Request(2, TOPK - 2), Request(2, 10), Request(0)), 1),
    "drafts_of_unlike_length": ((Request(1, 40), Request(3, 30), Request(4, 10)), 3),
    "mixed": ((Request(1, 3), Request(20, 28), Request(TOPK)), 0),
}


def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the functions that score are called from now on."""
    called: list[str] = []
    for name in ("decode_topk", "prefill_topk"):
        real = getattr(op, name)

        def noted(*given: Any, name: str = name, real: Any = real, **more: Any) -> Any:  # noqa: ANN401
            called.append(name)
            return real(*given, **more)

        monkeypatch.setattr(op, name, noted)
    return called


@pytest.mark.parametrize(("requests", "draft_tokens"), SHORT.values(), ids=SHORT)
@pytest.mark.usefixtures("_seeded")
def test_requests_no_longer_than_the_top_k_are_not_scored(
    requests: tuple[Request, ...], draft_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = scored(monkeypatch)
    batch = Batch(requests)
    case = Case(batch, padding=2)
    before = case.cache.clone()
    case.run(built(batch, draft_tokens), monkeypatch)
    case.check()
    assert called == []
    assert not torch.equal(case.cache, before)


@pytest.mark.usefixtures("_seeded")
def test_a_step_chooses_whole_pasts_once_for_all_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, step = Batch((Request(1, 5), Request(1, 20), Request(7))), ForwardContext({}, {}, {})
    case, metadata = Case(batch, padding=2), built(batch, 0)
    case.run(metadata, monkeypatch, step)
    case.check()

    def left(metadata: Any, step: ForwardContext) -> bool:  # noqa: ANN401
        """Whether another layer leaves the buffer as it is."""
        case.buffer[0, 0] = 55
        case.run(metadata, monkeypatch, step)
        found = bool(case.buffer[0, 0] == 55)
        case.buffer[0, 0] = 0
        return found

    assert left(metadata, step)
    # Another step, the other half of a batch, and a layer that scored in between.
    assert not left(metadata, ForwardContext({}, {}, {}))
    assert not left(metadata, step)
    assert not left(built(batch, 0), step)
    longer = Batch((Request(1, TOPK), Request(1, 3)))
    other = Case(longer)
    other.buffer = case.buffer
    other.run(built(longer, 0), monkeypatch, step)
    assert not left(metadata, step)


@pytest.mark.usefixtures("_seeded")
def test_one_that_is_longer_and_a_captured_graph_are_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = scored(monkeypatch)
    longer = Batch((Request(1, TOPK), Request(1, 3)))
    Case(longer).run(built(longer, 0), monkeypatch)
    assert called == ["decode_topk"]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    short = Batch((Request(1, 5), Request(1, 3)))
    case = Case(short)
    case.run(built(short, 0), monkeypatch)
    case.check()
    assert called == ["decode_topk", "decode_topk"]


@pytest.fixture
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.usefixtures("_seeded")
def test_a_padded_batch_keeps_its_padding_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch((Request(1, 100), Request(1, 30)))
    case = Case(batch, padding=3)
    case.run(built(batch, 0), monkeypatch)
    case.check()


@pytest.mark.primary
@pytest.mark.usefixtures("_seeded")
@pytest.mark.parametrize(("rows_at_a_time", "pieces"), [(1, 28), (7, 4), (1000, 1)])
def test_prefills_in_pieces(
    rows_at_a_time: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = stock_metadata.split_indexer_prefill_chunks
    longest = 130

    def in_pieces(lengths: Tensor, new: Tensor, room: int, _: int, **more: int) -> object:
        return split(lengths, new, room, 4 * longest * rows_at_a_time, **more)

    monkeypatch.setattr(stock_metadata, "split_indexer_prefill_chunks", in_pieces)
    batch = Batch((Request(1, 60), Request(20, 110), Request(30)))
    metadata = built(batch, 0)
    assert len(metadata.prefill.chunks) == pieces
    case = Case(batch)
    case.run(metadata, monkeypatch)
    case.check()


def test_unlike_requests_are_asked_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM pads: here the builder says so, and the tokens of padding come last."""
    torch.manual_seed(0)
    batch = Batch((Request(2, 90), Request(2, 255), Request(0)))
    metadata = built(batch, 1)
    assert metadata.decode.requires_padding
    case = Case(batch, padding=2)
    metadata.num_decode_tokens += 2
    case.run(metadata, monkeypatch)
    case.check()


def loop(lens: list[int], seq_lens: list[int], tokens: int) -> list[tuple[int, int | None]]:
    """Context and request of each token, one after the other."""
    found: list[tuple[int, int | None]] = [
        (length - count + offset + 1, request)
        for request, (count, length) in enumerate(zip(lens, seq_lens, strict=True))
        for offset in range(count)
    ]
    return found + [(0, None)] * (tokens - len(found))


@pytest.mark.parametrize(
    ("lens", "seq_lens", "tokens"),
    [
        ([1], [1], 1),
        ([2, 1, 3], [9, 1, 70], 6),
        ([2, 0, 3], [9, 0, 70], 5),
        ([0, 2, 0], [0, 5, 0], 2),
        ([2, 2, 0, 0], [8, 6, 0, 0], 8),
        ([1, 1, 0], [512, 3, 0], 3),
    ],
)
def test_one_by_one_is_a_loop_over_tokens(
    lens: list[int], seq_lens: list[int], tokens: int
) -> None:
    table = torch.arange(len(lens) * 3, dtype=torch.int32).view(len(lens), 3)
    context, pages = op.one_by_one(
        torch.tensor(lens, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        table,
        tokens,
    )
    assert context.dtype == torch.int32
    assert tuple(context.shape) == (tokens, 1)
    for row, (length, request) in enumerate(loop(lens, seq_lens, tokens)):
        assert int(context[row, 0]) == length
        if request is not None:
            assert torch.equal(pages[row], table[request])


def test_a_profiling_run_reserves_what_a_batch_may_need(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Batch((Request(1, 5),)))
    context = SimpleNamespace(attn_metadata=None)
    monkeypatch.setattr(api, "get_forward_context", lambda: context)
    before = case.cache.clone()
    taken: list[int] = []
    empty: Callable[..., Tensor] = torch.empty
    monkeypatch.setattr(op.torch, "empty", lambda *a, **k: (taken.append(a[0]), empty(*a, **k))[1])
    found = op.sparse_attn_indexer(
        torch.empty(6, 8), api._encode_layer_name(PREFIX), case.cache, case.q, case.k,
        case.weights, DIMS, "ue8m0", TOPK, DIMS, MAX_MODEL_LEN, 900, case.buffer, False,
    )  # fmt: skip
    assert found is case.buffer
    assert bool((case.buffer == 77).all())
    assert torch.equal(case.cache, before)
    assert api.envs.VLLM_SPARSE_INDEXER_MAX_LOGITS_MB * 2**20 in taken
    pool = workspace.current_workspace_manager()
    pool.lock()
    op._gather_buffers(900, DIMS)
    with pytest.raises(AssertionError):
        op._gather_buffers(9000, DIMS)


class TestLayer:
    """vLLM's name for the layer yields ours; what ours does not do is refused."""

    def layer(self, **more: bool) -> Any:  # noqa: ANN401
        buffer = torch.zeros(8, TOPK, dtype=torch.int32)
        k_cache = SimpleNamespace(prefix=PREFIX, kv_cache=torch.empty(0))
        return SparseAttnIndexer(k_cache, DIMS, "ue8m0", TOPK, DIMS, 512, 900, buffer, **more)

    def test_ours_asks_for_no_deep_gemm(self) -> None:
        with set_current_vllm_config(VllmConfig()):
            assert type(self.layer()) is layer.TritonSparseAttnIndexer
        assert stock_metadata.has_deep_gemm() is False

    def test_an_fp4_cache_is_refused(self) -> None:
        with (
            set_current_vllm_config(VllmConfig()),
            pytest.raises(ValueError, match=r"fp4 cache.*GLM5_INDEXER=stock"),
        ):
            self.layer(use_fp4_cache=True)

    @pytest.mark.parametrize("name", ["decode", "prefill"])
    def test_context_parallelism_is_refused(self, name: str) -> None:
        config = VllmConfig()
        object.__setattr__(config.parallel_config, f"{name}_context_parallel_size", 2)
        with (
            set_current_vllm_config(config),
            pytest.raises(ValueError, match=f"--{name}-context-parallel-size"),
        ):
            self.layer()

    def test_stock_is_as_its_parent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLM5_INDEXER", "stock")
        choice.chosen_indexer.cache_clear()
        from vllm.model_executor.layers import sparse_attn_indexer as stock

        monkeypatch.setattr(stock, "has_deep_gemm", lambda: False)
        FakeGpu.choose(9, 0)
        config = set_current_vllm_config(VllmConfig())
        with config, pytest.raises(RuntimeError, match="requires DeepGEMM"):
            self.layer()
        monkeypatch.setattr(stock, "has_deep_gemm", lambda: True)
        with set_current_vllm_config(VllmConfig()):
            found = self.layer()
        assert found.ours is False
        called: list[tuple[Any, ...]] = []
        fake = SimpleNamespace(sparse_attn_indexer=lambda *given: called.append(given) or "theirs")
        monkeypatch.setattr(torch.ops, "vllm", fake, raising=False)
        assert found.forward_cuda(1, 2, 3, 4) == "theirs"
        assert called[0][0] == 1
