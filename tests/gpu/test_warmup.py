"""What the warm-up called is not compiled again, whatever the shapes of a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from glm5_kernel.ops.topk import workspace_bytes
from glm5_kernel.ops.warmup import warm_attention, warm_indexer

from tests.kernel.server_calls import (
    CONTEXT,
    INDEX_HEADS,
    KEYS,
    KINDS,
    TOKENS,
    attend,
    decode,
    prefill,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HEADS = 16


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels, each time that one is compiled or read from the disk."""
    import triton

    names: list[str] = []

    def note(*_: object, fn: Any, **__: object) -> None:  # noqa: ANN401
        names.append(fn.name.rpartition(".")[2])

    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", note)
    return names


@pytest.mark.parametrize("topk", [512, 2048])
@pytest.mark.parametrize(("dtype", "fp8"), KINDS)
def test_attention(compiled: list[str], dtype: torch.dtype, fp8: bool, topk: int) -> None:
    device = torch.device("cuda", 0)
    warm_attention(TOKENS, HEADS, topk, dtype, device, fp8=fp8)
    compiled.clear()
    attend(HEADS, topk, dtype, device, fp8=fp8)
    assert compiled == []


@pytest.mark.parametrize("next_n", [1, 2, 4])
def test_indexer(compiled: list[str], next_n: int) -> None:
    device = torch.device("cuda", 0)
    space = torch.zeros(workspace_bytes(TOKENS), dtype=torch.uint8, device=device)
    given = (TOKENS, CONTEXT, KEYS, INDEX_HEADS, 2048, next_n, device)
    warm_indexer(*given, workspace=space)
    compiled.clear()
    decode(next_n, 2048, space)
    prefill(2048, space)
    assert compiled == []
