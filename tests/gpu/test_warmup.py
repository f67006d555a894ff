"""What the warm-up called is not compiled again, whatever the shapes of a call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from glm5_kernel.ops.indexer import decode_topk, prefill_topk
from glm5_kernel.ops.sparse_mla import sparse_mla
from glm5_kernel.ops.topk import workspace_bytes
from glm5_kernel.ops.warmup import warm_attention, warm_indexer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOKENS, CONTEXT, HEADS, INDEX_HEADS, BLOCKS = 4096, 9000, 16, 32, 300


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels, each time that one is compiled or read from the disk."""
    import triton

    names: list[str] = []

    def note(*_: object, fn: Any, **__: object) -> None:  # noqa: ANN401
        names.append(fn.name.rpartition(".")[2])

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
    return names


def integers(*size: int, most: int) -> torch.Tensor:
    return torch.randint(0, most, size, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("topk", [512, 2048])
@pytest.mark.parametrize(
    ("dtype", "fp8"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)]
)
def test_attention(compiled: list[str], dtype: torch.dtype, fp8: bool, topk: int) -> None:
    device = torch.device("cuda", 0)
    warm_attention(TOKENS, HEADS, topk, dtype, device, fp8=fp8)
    width, kind = (656, torch.uint8) if fp8 else (576, dtype)
    cache = torch.zeros(BLOCKS, 64, width, dtype=kind, device="cuda")
    compiled.clear()
    for tokens in (*range(1, 70), *random.sample(range(70, TOKENS), 20), TOKENS):
        q = torch.randn(tokens, HEADS, 576, device="cuda").to(dtype)
        table = integers(8, 140, most=BLOCKS)
        indices = integers(tokens, topk, most=CONTEXT)
        sparse_mla(q, cache, indices, 0.1, block_table=table, request_ids=integers(tokens, most=8))
    assert compiled == []


@pytest.mark.parametrize("next_n", [1, 2, 4])
def test_indexer(compiled: list[str], next_n: int) -> None:
    device, most = torch.device("cuda", 0), 3 * CONTEXT
    space = torch.zeros(workspace_bytes(TOKENS), dtype=torch.uint8, device="cuda")
    given = (TOKENS, CONTEXT, most, INDEX_HEADS, 2048, next_n, device)
    warm_indexer(*given, workspace=space)
    e4m3 = torch.float8_e4m3fn
    cache = integers(BLOCKS, 64, 132, most=100).to(torch.uint8)
    compiled.clear()
    for batch in (1, 2, 3, 8, 31, 64, 65, 133, 265, 400):
        for context in (256, 1024, 4096, 4352, CONTEXT):
            rows = batch * next_n
            q = torch.randn(batch, next_n, INDEX_HEADS, 128, device="cuda").to(e4m3)
            lengths = integers(batch, next_n, most=context)
            table = integers(batch, 141, most=BLOCKS)
            weights = torch.rand(rows, INDEX_HEADS, device="cuda")
            decode_topk(
                q, cache, weights, lengths, table, 2048, max_context=context, workspace=space
            )
    for rows, keys in ((1, 5), (20, 300), (200, 5000), (1000, 9000), (TOKENS, most)):
        q = torch.randn(rows, INDEX_HEADS, 128, device="cuda").to(e4m3)
        k = torch.randn(keys, 128, device="cuda").to(e4m3)
        ends = integers(rows, most=keys)
        prefill_topk(
            q, k, torch.rand(keys, device="cuda"), torch.rand(rows, INDEX_HEADS, device="cuda"),
            torch.zeros_like(ends), ends, 2048, workspace=space,
        )  # fmt: skip
    assert compiled == []
