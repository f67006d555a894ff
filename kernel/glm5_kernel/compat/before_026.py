"""vLLM 0.24 and 0.25: the base that sparse MLA backends share since 0.26, written for those two.

Before 0.26 every backend has a metadata builder of its own, and a sparse layer has no dense
prefill: all its tokens go through `forward_mqa`, whichever request they belong to
(`v1/attention/backend.py`, SparseMLAAttentionImpl; `layers/attention/mla_attention.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadataBuilder, SparseMLAAttentionImpl


class SparseMLACommonMetadataBuilder(AttentionMetadataBuilder):
    """Tells a batch in the words of 0.26, all of its requests as decodes."""

    metadata_cls: ClassVar[Any]

    def __init__(
        self,
        kv_cache_spec: Any,  # noqa: ANN401
        layer_names: list[str],
        vllm_config: Any,  # noqa: ANN401
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.topk_tokens: int = vllm_config.model_config.hf_config.index_topk
        # One buffer for all steps: a captured CUDA graph keeps its address.
        self._requests = torch.zeros(
            vllm_config.scheduler_config.max_num_batched_tokens, dtype=torch.int32, device=device
        )

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: Any,  # noqa: ANN401
        fast_build: bool = False,
    ) -> Any:  # noqa: ANN401
        batch = common_attn_metadata
        return self.metadata_cls(
            num_reqs=batch.num_reqs,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            num_actual_tokens=batch.num_actual_tokens,
            query_start_loc=batch.query_start_loc,
            slot_mapping=batch.slot_mapping,
            block_table=batch.block_table_tensor,
            req_id_per_token=self._request_of_each_token(batch),
            seq_lens=batch.seq_lens,
            block_size=self.kv_cache_spec.block_size,
            topk_tokens=self.topk_tokens,
            num_decodes=batch.num_reqs,
            num_prefills=0,
            num_decode_tokens=batch.num_actual_tokens,
            prefill_max_seq_len=0,
        )

    def _request_of_each_token(self, batch: Any) -> Tensor:  # noqa: ANN401
        """[tokens] int32; 0 for tokens of padding."""
        starts = batch.query_start_loc_cpu
        requests = torch.arange(len(starts) - 1, dtype=torch.int32)
        found = torch.repeat_interleave(requests, starts.diff())
        self._requests.zero_()
        self._requests[: len(found)].copy_(found, non_blocking=True)
        return self._requests[: batch.num_actual_tokens]


class SparseMLACommonImpl(SparseMLAAttentionImpl):
    """Holds what a layer is built with."""

    is_sparse = True

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
        *,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        indexer: Any | None = None,  # noqa: ANN401
        topk_indices_buffer: Tensor | None = None,
        **_others: Any,  # noqa: ANN401
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_lora_rank = kv_lora_rank
        self.qk_rope_head_dim = qk_rope_head_dim
        self.topk_indices_buffer = (
            topk_indices_buffer if indexer is None else indexer.topk_indices_buffer
        )
