"""TRITON_MLA_SPARSE: vLLM's sparse MLA contract on `ops.sparse_mla`.

Contract: vLLM 0.26.0, `v1/attention/backend.py` and
`model_executor/layers/attention/sparse_mla_attention.py`. Dense prefill of short prompts, the KV
cache's writing, W_UK's absorption and W_UV's projection are vLLM's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from glm5_kernel.attention import NAME
from glm5_kernel.attention.limits import (
    BLOCK_SIZE,
    DETERMINISTIC_TOKENS,
    Case,
    row_values,
    unsupported,
)
from glm5_kernel.attention.workspace import reserve, take
from glm5_kernel.compat import api
from glm5_kernel.ops.sparse_mla import sparse_mla
from glm5_kernel.ops.warmup import warm_attention
from glm5_kernel.report import report_attention
from glm5_kernel.warming import warm_once

SHORT_EXTEND = 128
"""Requests with at most this many new tokens skip dense prefill: that costs more than our kernel
(88 µs for 128 tokens of 8 heads on an H200) because it must first gather the whole context."""


class TritonMLASparseBackend(api.AttentionBackend):
    """What vLLM asks about the backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", "fp8_ds_mla"]

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[TritonMLASparseImpl]:
        return TritonMLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[TritonMLASparseMetadataBuilder]:
        return TritonMLASparseMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        return [BLOCK_SIZE]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        return num_blocks, block_size, row_values(head_size, cache_dtype_str)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: tuple[int, int]) -> bool:
        return tuple(capability) >= (8, 0)

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: tuple[int, int],
    ) -> str | None:
        capability = tuple(device_capability)
        case = Case(head_size, dtype, kv_cache_dtype or "auto", capability, block_size)
        return unsupported(case, api.get_current_vllm_config_or_none())


@dataclass
class TritonMLASparseMetadata(api.AttentionMetadata):
    """A batch, as `SparseMLACommonMetadataBuilder` describes it (vLLM 0.26.0).

    Args:
        block_table: [requests, pages] int32.
        req_id_per_token: [tokens] int32.
        num_decodes: requests that go to the sparse kernel whatever their length.
        lengths: [tokens] int32: how many indices of each token's row count.
    """

    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    req_id_per_token: Tensor
    seq_lens: Tensor
    block_size: int
    topk_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    prefill_max_seq_len: int
    prefill: Any = None
    cp_kv_cache_interleave_size: int = 1
    lengths: Tensor | None = None


class TritonMLASparseMetadataBuilder(api.SparseMLACommonMetadataBuilder):
    """Short requests first, so that one call of the kernel takes them all."""

    metadata_cls = TritonMLASparseMetadata
    _cudagraph_support: ClassVar[Any] = api.AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._init_reorder_batch_threshold(SHORT_EXTEND, supports_spec_as_decode=True)
        tokens = self.vllm_config.scheduler_config.max_num_batched_tokens
        # One buffer for all steps: a captured CUDA graph keeps its address.
        self._lengths = torch.zeros(tokens, dtype=torch.int32, device=self.device)
        self._numbers = torch.arange(1, tokens + 1, dtype=torch.int32, device=self.device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: object,
        fast_build: bool = False,
    ) -> TritonMLASparseMetadata:
        metadata: TritonMLASparseMetadata = super().build(
            common_prefix_len, common_attn_metadata, fast_build
        )
        metadata.lengths = self._lengths_of(metadata)
        return metadata

    def _lengths_of(self, batch: TritonMLASparseMetadata) -> Tensor:
        """As many as a token sees of its request, itself included, and at most the top-k.

        The indexer lists what there is first, then −1: with a context shorter than the top-k most
        of a row would be gathered for nothing.
        """
        requests, tokens = batch.num_reqs, batch.num_actual_tokens
        if batch.max_query_len == 1 and requests == tokens:
            # Most steps of a server; padding has a length of 0.
            return torch.clamp(
                batch.seq_lens[:tokens], 0, self.topk_tokens, out=self._lengths[:tokens]
            )
        # Of the batch's token i, which belongs to request r: seq_lens[r] − (ends[r] − 1 − i).
        before = batch.seq_lens[:requests] - batch.query_start_loc[1 : requests + 1]
        found = self._lengths[:tokens]
        torch.index_select(before, 0, batch.req_id_per_token, out=found)
        return found.add_(self._numbers[:tokens]).clamp_(0, self.topk_tokens)


class TritonMLASparseImpl(api.SparseMLACommonImpl):
    """One layer: the kernel over the indexer's top-k, which layers may share.

    Raises:
        ValueError: a feature that MLA models do not have is asked for.
    """

    can_return_lse_for_decode = True
    lse_base_on_e = True
    supports_pcp = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        indexer: object | None = None,
        topk_indices_buffer: Tensor | None = None,
        **mla_arguments: Any,  # noqa: ANN401
    ) -> None:
        if alibi_slopes or sliding_window or logits_soft_cap:
            raise ValueError(f"{NAME} has no ALiBi, sliding window or soft cap")
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window,
            kv_cache_dtype, logits_soft_cap, attn_type, kv_sharing_target_layer_name,
            indexer=indexer, topk_indices_buffer=topk_indices_buffer, **mla_arguments,
        )  # fmt: skip
        if self.topk_indices_buffer is None:
            raise ValueError(f"{NAME} needs the top-k buffer of a sparse model's indexer")
        self.supports_quant_query_input = False
        config = api.get_current_vllm_config()
        self._deterministic = bool(api.envs.VLLM_BATCH_INVARIANT)
        self._workspace_bytes = reserve(
            config.scheduler_config.max_num_batched_tokens, num_heads,
            self.topk_indices_buffer, fp8=kv_cache_dtype == "fp8_ds_mla",
            latent_dim=self.kv_lora_rank, deterministic=self._deterministic,
        )  # fmt: skip
        report_attention(NAME, kv_cache_dtype, config.model_config.dtype)
        self._warm_up(
            config.scheduler_config.max_num_batched_tokens,
            num_heads,
            config.model_config.dtype,
            fp8=kv_cache_dtype == "fp8_ds_mla",
        )

    def _warm_up(self, max_tokens: int, heads: int, dtype: torch.dtype, *, fp8: bool) -> None:
        buffer = self.topk_indices_buffer
        given = (max_tokens, heads, buffer.shape[-1], dtype, buffer.device)
        more = {
            "fp8": fp8, "latent_dim": self.kv_lora_rank, "rope_dim": self.qk_rope_head_dim,
            "deterministic": self._deterministic,
        }  # fmt: skip
        key = (*given, *more.values())
        warm_once("attention", key, lambda: warm_attention(*given, **more))

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: TritonMLASparseMetadata,
        layer: object,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the first tokens of the batch, absorbed.

        Args:
            q: [T, H, 576], or ([T, H, 512], [T, H, 64]).
            kv_c_and_k_pe_cache: [blocks, 64, 576], or [blocks, 64, 656] uint8.

        Returns:
            [T, H, 512] in q's dtype and the natural-log LSE [T, H] float32.
        """
        tokens = (q[0] if isinstance(q, tuple) else q).shape[0]
        step = min(tokens, DETERMINISTIC_TOKENS) if self._deterministic else tokens
        if step == tokens:
            return self._attend(q, kv_c_and_k_pe_cache, attn_metadata, slice(0, tokens))
        parts = [
            self._attend(
                q, kv_c_and_k_pe_cache, attn_metadata, slice(first, min(first + step, tokens))
            )
            for first in range(0, tokens, step)
        ]
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])

    def _attend(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        cache: Tensor,
        metadata: TritonMLASparseMetadata,
        rows: slice,
    ) -> tuple[Tensor, Tensor]:
        fp8 = self.kv_cache_dtype == "fp8_ds_mla"
        queries = (q[0][rows], q[1][rows]) if isinstance(q, tuple) else q[rows]
        return sparse_mla(
            queries,
            cache.view(torch.uint8) if fp8 else cache,
            self.topk_indices_buffer[rows],
            self.scale,
            latent_dim=self.kv_lora_rank,
            rope_dim=self.qk_rope_head_dim,
            block_table=metadata.block_table,
            request_ids=metadata.req_id_per_token[rows],
            lengths=None if metadata.lengths is None else metadata.lengths[rows],
            workspace=take(self._workspace_bytes),
            deterministic=self._deterministic,
        )
