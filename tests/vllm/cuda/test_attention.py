"""The attention backend behind vLLM's own metadata builder, interpreted, against the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from glm5_kernel.attention import backend as ours
from glm5_kernel.attention import workspace as scratch
from glm5_kernel.attention.backend import (
    SHORT_EXTEND,
    TritonMLASparseBackend,
    TritonMLASparseImpl,
    TritonMLASparseMetadata,
    TritonMLASparseMetadataBuilder,
)
from glm5_kernel.compat import api
from glm5_kernel.ops.layouts import Fp8Layout, pack_fp8
from glm5_kernel.ops.reference import sparse_mla_reference
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.ubatch_utils import maybe_create_ubatch_slices, split_attn_metadata

from tests.kernel.support import assert_close
from tests.vllm.cuda.batches import BLOCK, CPU, Batch, Request, configuration

HEADS, LATENT, ROPE, TOPK = 4, 512, 64, 40
SCALE = 0.07
MIXED = Batch((Request(1, 100), Request(3, 61), Request(6)))


def spec(kv: str = "auto") -> MLAAttentionSpec:
    dtype = torch.uint8 if kv == "fp8_ds_mla" else torch.bfloat16
    return MLAAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=LATENT + ROPE, dtype=dtype, cache_dtype_str=kv
    )


def built(batch: Batch, config: Any = None) -> TritonMLASparseMetadata:  # noqa: ANN401
    config = config or configuration(topk=TOPK, heads=HEADS)
    with set_current_vllm_config(VllmConfig()):
        builder = TritonMLASparseMetadataBuilder(spec(), ["layer"], config, CPU)
    return builder.build(0, batch.common())


def implementation(monkeypatch: pytest.MonkeyPatch, kv: str = "auto", **more: Any) -> Any:  # noqa: ANN401
    """One layer as vLLM builds it, with a top-k buffer of its own."""
    buffer = torch.full((256, TOPK), -1, dtype=torch.int32)
    config = configuration(topk=TOPK, heads=HEADS)
    monkeypatch.setattr(api, "get_current_vllm_config", lambda: config)
    arguments: dict[str, Any] = {
        "num_heads": HEADS, "head_size": LATENT + ROPE, "scale": SCALE, "num_kv_heads": 1,
        "alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": kv,
        "logits_soft_cap": None, "attn_type": "decoder", "kv_sharing_target_layer_name": None,
        "q_lora_rank": 768, "kv_lora_rank": LATENT, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": ROPE, "qk_head_dim": 256, "v_head_dim": 256, "kv_b_proj": None,
        "indexer": SimpleNamespace(topk_indices_buffer=buffer),
    }  # fmt: skip
    monkeypatch.setattr(
        "vllm.distributed.parallel_state._TP", SimpleNamespace(world_size=1), raising=False
    )
    return TritonMLASparseImpl(**(arguments | more))


def cache(batch: Batch, kv: str) -> Tensor:
    rows = torch.randn(batch.blocks, BLOCK, LATENT + ROPE)
    return pack_fp8(rows, Fp8Layout()) if kv == "fp8_ds_mla" else rows.to(torch.bfloat16)


def choose(batch: Batch, buffer: Tensor) -> None:
    """Some of each token's past, in any order, −1 behind it."""
    for row, (_, position) in enumerate(batch.rows):
        some = torch.randperm(position + 1)[:TOPK].int()
        buffer[row] = -1
        buffer[row, : some.numel()] = some


def queries() -> tuple[Tensor, Tensor]:
    rows = MIXED.tokens
    latent = torch.randn(rows, HEADS, LATENT).to(torch.bfloat16)
    return latent, torch.randn(rows, HEADS, ROPE).to(torch.bfloat16)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("kv", "apart"),
    [
        ("auto", True),
        ("fp8_ds_mla", True),
        pytest.param("auto", False, marks=pytest.mark.primary),
        pytest.param("fp8_ds_mla", False, marks=pytest.mark.primary),
    ],
)
def test_a_mixed_batch(kv: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, metadata = implementation(monkeypatch, kv), built(MIXED)
    choose(MIXED, layer.topk_indices_buffer)
    kv_cache, (latent, rope) = cache(MIXED, kv), queries()
    joined = torch.cat([latent, rope], dim=-1)
    found = layer.forward_mqa((latent, rope) if apart else joined, kv_cache, metadata, None)
    assert_close(found, expected(layer, joined, kv_cache, metadata), torch.bfloat16)


def expected(
    layer: Any,  # noqa: ANN401
    q: Tensor,
    kv_cache: Tensor,
    metadata: TritonMLASparseMetadata,
) -> tuple[Tensor, Tensor]:
    return sparse_mla_reference(
        q, kv_cache, layer.topk_indices_buffer[: q.shape[0]], SCALE,
        block_table=metadata.block_table, request_ids=metadata.req_id_per_token[: q.shape[0]],
    )  # fmt: skip


@pytest.mark.usefixtures("pool")
def test_a_layer_that_shares_another_layers_indexer(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.full((256, TOPK), -1, dtype=torch.int32)
    layer = implementation(monkeypatch, indexer=None, topk_indices_buffer=shared)
    assert layer.topk_indices_buffer is shared
    with pytest.raises(ValueError, match="needs the top-k buffer"):
        implementation(monkeypatch, indexer=None)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("more", [{"sliding_window": 4}, {"alibi_slopes": [1.0]}])
def test_features_that_mla_has_not(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no ALiBi, sliding window or soft cap"):
        implementation(monkeypatch, **more)


@pytest.mark.primary
@pytest.mark.usefixtures("pool")
def test_deterministic_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's result is the same, bit for bit, however long the batch and its pieces are."""
    torch.manual_seed(0)
    monkeypatch.setattr(api.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    monkeypatch.setattr(ours, "DETERMINISTIC_TOKENS", 4)
    monkeypatch.setattr(scratch, "DETERMINISTIC_TOKENS", 4)
    layer, metadata = implementation(monkeypatch), built(MIXED)
    choose(MIXED, layer.topk_indices_buffer)
    kv_cache, q = cache(MIXED, "auto"), torch.cat(queries(), dim=-1)
    calls = spy(monkeypatch)
    out, lse = layer.forward_mqa(q, kv_cache, metadata, None)
    assert [call["rows"] for call in calls] == [4, 4, 2]
    assert all(call["deterministic"] for call in calls)
    assert_close((out, lse), expected(layer, q, kv_cache, metadata), torch.bfloat16)
    for tokens in (1, 3, 4):
        some, some_lse = layer.forward_mqa(q[:tokens], kv_cache, metadata, None)
        assert torch.equal(some, out[:tokens])
        assert torch.equal(some_lse, lse[:tokens])


def spy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    real = ours.sparse_mla

    def watched(q: Tensor, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        calls.append({"rows": q.shape[0], **more})
        return real(q, *given, **more)

    monkeypatch.setattr(ours, "sparse_mla", watched)
    return calls


def test_scratch_memory_is_reserved_before_the_pool_is_locked(
    monkeypatch: pytest.MonkeyPatch,
    pool: Any,  # noqa: ANN401
) -> None:
    torch.manual_seed(0)
    layer, metadata = implementation(monkeypatch), built(MIXED)
    choose(MIXED, layer.topk_indices_buffer)
    pool.lock()
    calls = spy(monkeypatch)
    kv_cache, q = cache(MIXED, "auto"), torch.cat(queries(), dim=-1)
    layer.forward_mqa(q, kv_cache, metadata, None)
    (call,) = calls
    assert (call["workspace"] is None) == (layer._workspace_bytes == 0)


def test_what_the_builder_tells() -> None:
    batch = Batch((Request(1, 100), Request(SHORT_EXTEND, 10), Request(SHORT_EXTEND + 1)))
    metadata = built(batch)
    assert isinstance(metadata, TritonMLASparseMetadata)
    counts = (metadata.num_decodes, metadata.num_prefills, metadata.num_decode_tokens)
    if RELEASE_HAS_DENSE_PREFILL:
        assert counts == (2, 1, 1 + SHORT_EXTEND)
    else:
        assert metadata.num_decode_tokens == batch.tokens
    requests = [index for index, _ in batch.rows]
    assert metadata.req_id_per_token.tolist() == requests
    assert torch.equal(metadata.block_table, batch.block_table)
    assert (metadata.block_size, metadata.topk_tokens) == (BLOCK, TOPK)
    assert metadata.lengths is not None
    assert metadata.lengths.tolist() == [min(at + 1, TOPK) for _, at in batch.rows]


def test_lengths_of_padding_and_of_the_next_batch() -> None:
    """A captured CUDA graph reads them where they were when it was captured."""
    with set_current_vllm_config(VllmConfig()):
        config = configuration(topk=TOPK, heads=HEADS)
        builder = TritonMLASparseMetadataBuilder(spec(), ["layer"], config, CPU)
    common = Batch((Request(1, 7), Request(1, 90), Request(1, 0))).common()
    common.seq_lens[2] = 0
    first = builder.build(0, common).lengths
    assert first.tolist() == [8, TOPK, 0]
    second = builder.build(0, Batch((Request(1, 2), Request(2, 5))).common()).lengths
    assert second.tolist() == [3, 6, 7]
    assert second.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("middle", [1, 3, 9])
def test_lengths_of_the_halves_of_a_padded_batch(middle: int) -> None:
    """Dual-batch overlap cuts a batch anywhere, padded for a CUDA graph, and has two builders."""
    whole = MIXED.common()
    whole.num_reqs, whole.num_actual_tokens = 5, MIXED.tokens + 2
    starts, lengths = pad(whole.query_start_loc, 2, MIXED.tokens), pad(whole.seq_lens, 2)
    whole.query_start_loc, whole.query_start_loc_cpu = starts, starts.clone()
    whole.seq_lens, whole.seq_lens_cpu_upper_bound = lengths, lengths.clone()
    whole.block_table_tensor = torch.cat([whole.block_table_tensor, whole.block_table_tensor[:2]])
    whole.slot_mapping = pad(whole.slot_mapping, 2, -1)
    new = np.array([request.new for request in MIXED.requests])
    _, halves = maybe_create_ubatch_slices(True, new, MIXED.tokens + 2, 5, 2, middle)
    found: list[int] = []
    for half in split_attn_metadata(halves, whole):
        with set_current_vllm_config(VllmConfig()):
            config = configuration(topk=TOPK, heads=HEADS)
            builder = TritonMLASparseMetadataBuilder(spec(), ["layer"], config, CPU)
        found += builder.build(0, half).lengths.tolist()
    assert found[: MIXED.tokens] == [min(at + 1, TOPK) for _, at in MIXED.rows]
    assert all(0 <= length <= TOPK for length in found[MIXED.tokens :])
    assert len(found) == MIXED.tokens + 2


def pad(given: Tensor, more: int, value: int = 0) -> Tensor:
    return torch.nn.functional.pad(given, (0, more), value=value)


@pytest.mark.parametrize("rejected", [0, 2])
def test_lengths_while_drafts_are_made(rejected: int) -> None:
    """vLLM changes the lengths of requests where they lie, and builds for every draft anew."""
    config = configuration(topk=TOPK, draft_tokens=3, heads=HEADS)
    with set_current_vllm_config(VllmConfig()):
        builder = TritonMLASparseMetadataBuilder(spec(), ["layer"], config, CPU)
    batch = Batch((Request(4, 10), Request(4, 34), Request(4, 90)))
    common = batch.common()
    first = builder.build_for_drafting(common, 0)
    assert first.lengths.tolist() == [min(at + 1, TOPK) for _, at in batch.rows]
    common.num_actual_tokens, common.max_query_len = 3, 1
    common.query_start_loc = torch.arange(4, dtype=torch.int32)
    common.query_start_loc_cpu = common.query_start_loc.clone()
    common.seq_lens -= rejected
    for draft in (1, 2):
        common.seq_lens += 1
        found = builder.build_for_drafting(common, draft).lengths.tolist()
        lengths = [request.length - rejected + draft for request in batch.requests]
        assert found == [min(length, TOPK) for length in lengths]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("kv", ["auto", "fp8_ds_mla"])
def test_nothing_behind_a_tokens_length_is_read(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, metadata = implementation(monkeypatch, kv), built(MIXED)
    choose(MIXED, layer.topk_indices_buffer)
    kv_cache, q = cache(MIXED, kv), torch.cat(queries(), dim=-1)
    wanted = expected(layer, q, kv_cache, metadata)
    short = layer.topk_indices_buffer == -1
    layer.topk_indices_buffer[short] = 0
    assert short[: MIXED.tokens].any()
    found = layer.forward_mqa(q, kv_cache, metadata, None)
    assert_close(found, wanted, torch.bfloat16)


RELEASE_HAS_DENSE_PREFILL = hasattr(api.SparseMLACommonImpl, "forward_mha")


def test_drafts_raise_the_threshold_no_further() -> None:
    config = configuration(topk=TOPK, draft_tokens=3, heads=HEADS)
    builder = TritonMLASparseMetadataBuilder(spec(), ["layer"], config, CPU)
    assert builder.reorder_batch_threshold >= SHORT_EXTEND
    support = builder.get_cudagraph_support(config, spec())
    assert support == AttentionCGSupport.UNIFORM_BATCH


@pytest.mark.parametrize(
    ("kv", "shape"),
    [("auto", (9, 64, 576)), ("bfloat16", (9, 64, 576)), ("fp8_ds_mla", (9, 64, 656))],
)
def test_shape_of_the_cache(kv: str, shape: tuple[int, ...]) -> None:
    assert TritonMLASparseBackend.get_kv_cache_shape(9, 64, 1, 576, kv) == shape


def test_what_the_backend_says_of_itself() -> None:
    backend = TritonMLASparseBackend
    assert backend.get_name() == "TRITON_MLA_SPARSE"
    assert backend.get_impl_cls() is TritonMLASparseImpl
    assert backend.get_builder_cls() is TritonMLASparseMetadataBuilder
    assert backend.get_supported_kernel_block_sizes() == [64]
    assert (backend.is_mla(), backend.is_sparse()) == (True, True)
    assert TritonMLASparseImpl.can_return_lse_for_decode
