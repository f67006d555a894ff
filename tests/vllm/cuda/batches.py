"""Batches of requests as vLLM's model runner describes them, and the configuration around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata

BLOCK = 64
MAX_MODEL_LEN = 512
PAGES = MAX_MODEL_LEN // BLOCK
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Request:
    """Args: new: tokens of this step. before: tokens that the cache holds already."""

    new: int
    before: int = 0

    @property
    def length(self) -> int:
        return self.new + self.before


@dataclass
class Batch:
    """Requests in the order that vLLM wants: fewest new tokens first; padding has none.

    Args:
        blocks: of the cache; each request's lie anywhere in it.
    """

    requests: tuple[Request, ...]
    blocks: int = 64
    block_table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        order = torch.randperm(self.blocks)[: len(self.requests) * PAGES]
        self.block_table = order.view(len(self.requests), PAGES).int()

    @property
    def starts(self) -> Tensor:
        lengths = torch.tensor([0, *(request.new for request in self.requests)])
        return lengths.cumsum(0).int()

    @property
    def tokens(self) -> int:
        return sum(request.new for request in self.requests)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Request and position of each token."""
        return [
            (index, position)
            for index, request in enumerate(self.requests)
            for position in range(request.before, request.length)
        ]

    def slots(self, index: int, positions: Tensor) -> Tensor:
        """Physical slots of positions of a request, int64."""
        pages = self.block_table[index].long()
        return pages[positions // BLOCK] * BLOCK + positions % BLOCK

    def common(self) -> CommonAttentionMetadata:
        lengths = torch.tensor([request.length for request in self.requests], dtype=torch.int32)
        slots = [self.slots(index, torch.tensor([at])) for index, at in self.rows]
        return CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts,
            seq_lens=lengths,
            num_reqs=len(self.requests),
            num_actual_tokens=self.tokens,
            max_query_len=max(request.new for request in self.requests),
            max_seq_len=int(lengths.max()),
            block_table_tensor=self.block_table,
            slot_mapping=torch.cat(slots),
            seq_lens_cpu_upper_bound=lengths,
            is_prefilling=torch.tensor([request.new > 4 for request in self.requests]),
        )


def configuration(*, topk: int, draft_tokens: int = 0, heads: int = 4) -> Any:  # noqa: ANN401
    """What builders and layers read of a `VllmConfig`, for a model with sparse MLA."""
    real = VllmConfig()
    model = SimpleNamespace(
        index_topk=topk,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        q_lora_rank=768,
        num_attention_heads=heads,
    )
    layer = SimpleNamespace(prefill_backend=None)
    draft = SimpleNamespace(num_speculative_tokens=draft_tokens, parallel_drafting=False)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512, max_num_seqs=8),
        parallel_config=real.parallel_config,
        attention_config=real.attention_config,
        compilation_config=SimpleNamespace(static_forward_context={"layer": layer}),
        cache_config=SimpleNamespace(block_size=BLOCK, cache_dtype="auto"),
        speculative_config=draft if draft_tokens else None,
        model_config=SimpleNamespace(
            max_model_len=MAX_MODEL_LEN,
            dtype=torch.bfloat16,
            hf_config=model,
            hf_text_config=model,
            model_arch_config=SimpleNamespace(total_num_attention_heads=heads),
        ),
    )
