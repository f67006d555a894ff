"""Calls as a server makes them, to compare with what the warm-up has called before."""

from __future__ import annotations

import itertools
import math
import random

import torch
from glm5_kernel.ops.indexer import decode_topk, prefill_topk
from glm5_kernel.ops.sparse_mla import sparse_mla

TOKENS, CONTEXT, INDEX_HEADS, BLOCKS = 4096, 70_000, 32, 300
KEYS = 2 * CONTEXT
"""The most keys of a prefill."""

E4M3 = torch.float8_e4m3fn
KINDS = [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)]
"""dtype of queries, and whether the KV cache is fp8_ds_mla."""


def attend(heads: int, topk: int, dtype: torch.dtype, device: torch.device, *, fp8: bool) -> None:
    """Batches of every small size and of some large ones, in both layouts of the cache."""
    width, kind = (656, torch.uint8) if fp8 else (576, dtype)
    layers = torch.zeros(BLOCKS, 3, 64, width, dtype=kind, device=device)
    for tokens in (*range(1, 70), *random.sample(range(70, TOKENS), 20), TOKENS):
        sparse_mla(
            torch.zeros(tokens, heads, 576, dtype=dtype, device=device),
            layers[:, 1] if tokens % 2 else layers.view(-1, 64, width),
            _integers(tokens, topk, device=device),
            0.1,
            block_table=_integers(8, 140, device=device),
            request_ids=_integers(tokens, device=device),
            lengths=_integers(tokens, device=device),
        )


def decode(most: int, topk: int, workspace: torch.Tensor) -> None:
    """Batches of requests of many lengths, with up to `most` tokens of each."""
    device = workspace.device
    cache = torch.zeros(BLOCKS, 64, 132, dtype=torch.uint8, device=device)
    lengths = (256, 1024, 4096, 4352, 8448, 16_640, 40_192, CONTEXT)
    batches = (1, 2, 3, 8, 31, 64, 65, 133, 265, 400)
    for next_n, batch, context in itertools.product(range(1, most + 1), batches, lengths):
        decode_topk(
            torch.zeros(batch, next_n, INDEX_HEADS, 128, dtype=E4M3, device=device),
            cache,
            torch.zeros(batch * next_n, INDEX_HEADS, device=device),
            _integers(batch, next_n, device=device),
            _integers(batch, -(-CONTEXT // 64), device=device),
            topk,
            max_context=context,
            workspace=workspace,
        )


def prefill(topk: int, workspace: torch.Tensor) -> None:
    """Prompts of many lengths; the longest in more than one chunk."""
    device = workspace.device
    for rows, keys in ((1, 5), (20, 300), (200, 5000), (1000, 9000), (50, 17_000), (TOKENS, KEYS)):
        ends = _integers(rows, device=device)
        prefill_topk(
            torch.zeros(rows, INDEX_HEADS, 128, dtype=E4M3, device=device),
            torch.zeros(keys, 128, dtype=E4M3, device=device),
            torch.zeros(keys, device=device),
            torch.zeros(rows, INDEX_HEADS, device=device),
            _integers(rows, device=device),
            ends,
            topk,
            workspace=workspace,
        )


def _integers(*size: int, device: torch.device) -> torch.Tensor:
    """Part of something larger, as where vLLM works on one half of a batch after the other."""
    larger = torch.zeros(1 + math.prod(size), dtype=torch.int32, device=device)
    return larger[1:].view(size)
