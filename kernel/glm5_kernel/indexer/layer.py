"""The layer that vLLM builds instead of its own `SparseAttnIndexer` (vLLM 0.26.0).

Constructing vLLM's class yields this one (`CustomOp.register_oot`). Where the decision is "stock"
it does what its parent does; where it is "triton" it neither asks for DeepGEMM nor calls it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import sparse_attn_indexer as stock
from vllm.v1.attention.backends.mla import indexer as stock_metadata

from glm5_kernel.compat import api
from glm5_kernel.indexer import op
from glm5_kernel.indexer.choice import chosen_indexer


class TritonSparseAttnIndexer(stock.SparseAttnIndexer):
    """Scores every token of a request and writes the positions of the best into a buffer.

    Raises:
        ValueError: an fp4 indexer cache or context parallelism with our indexer.
    """

    def __init__(
        self,
        k_cache: Any,  # noqa: ANN401
        quant_block_size: int,
        scale_fmt: str,
        topk_tokens: int,
        head_dim: int,
        max_model_len: int,
        max_total_seq_len: int,
        topk_indices_buffer: Tensor,
        skip_k_cache_insert: bool = False,
        use_fp4_cache: bool = False,
    ) -> None:
        self.ours = chosen_indexer().name == "triton"
        if not self.ours:
            super().__init__(
                k_cache, quant_block_size, scale_fmt, topk_tokens, head_dim, max_model_len,
                max_total_seq_len, topk_indices_buffer, skip_k_cache_insert, use_fp4_cache,
            )  # fmt: skip
            return
        CustomOp.__init__(self)
        self.k_cache = k_cache
        self.quant_block_size = quant_block_size
        self.scale_fmt = scale_fmt
        self.topk_tokens = topk_tokens
        self.head_dim = head_dim
        self.max_model_len = max_model_len
        self.max_total_seq_len = max_total_seq_len
        self.topk_indices_buffer = topk_indices_buffer
        self.skip_k_cache_insert = skip_k_cache_insert
        _check(use_fp4_cache)
        config = api.get_current_vllm_config()
        drafts = config.num_speculative_tokens
        rows = config.scheduler_config.max_num_batched_tokens
        op.prepare(topk_indices_buffer.device, rows, 1 + drafts)
        _leave_deep_gemm_alone()

    def forward_cuda(
        self,
        hidden_states: Tensor,
        q_quant: Tensor | tuple[Tensor, Tensor],
        k: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """The buffer [tokens, topk] int32 of request-local positions, −1 padded."""
        if not self.ours:
            found: Tensor = super().forward_cuda(hidden_states, q_quant, k, weights)
            return found
        chosen: Tensor = torch.ops.glm5_kernel.sparse_attn_indexer(
            hidden_states,
            api._encode_layer_name(self.k_cache.prefix),
            self.k_cache.kv_cache,
            q_quant,
            k,
            weights,
            self.quant_block_size,
            self.scale_fmt,
            self.topk_tokens,
            self.head_dim,
            self.max_model_len,
            self.max_total_seq_len,
            self.topk_indices_buffer,
            self.skip_k_cache_insert,
        )
        return chosen


def _check(use_fp4_cache: bool) -> None:
    parallel = api.get_current_vllm_config().parallel_config
    if use_fp4_cache:
        raise ValueError(
            "glm5_kernel's indexer has no fp4 cache: leave use_fp4_indexer_cache off, "
            "or set GLM5_INDEXER=stock"
        )
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError(
            "glm5_kernel's indexer has no context parallelism: leave "
            "--decode-context-parallel-size and --prefill-context-parallel-size at 1, "
            "or set GLM5_INDEXER=stock"
        )


def _leave_deep_gemm_alone() -> None:
    """The metadata builder would otherwise run a DeepGEMM kernel whose result nobody reads."""
    stock_metadata.has_deep_gemm = _no_deep_gemm


def _no_deep_gemm() -> bool:
    return False


op.define()
