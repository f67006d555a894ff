"""Whether stock vLLM's DeepGEMM kernels of the indexer work on this GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CAPABILITIES = (9, 10)
_HEADS, _DIMS, _BLOCK = 32, 128, 64
_TOLERANCE = 1e-2
"""Of the largest score: sums of fp8 products in another order differ by far less."""


def problem() -> str | None:
    """Why DeepGEMM cannot be used, or None after it has computed a small case rightly.

    The first call compiles its two kernels (seconds, kept in DeepGEMM's cache), which serving would
    need at once anyway.
    """
    major, minor = torch.cuda.get_device_capability()
    if major not in _CAPABILITIES:
        return f"it has no kernels for capability {major}.{minor}"
    try:
        from vllm.utils import deep_gemm

        return _wrong_prefill(deep_gemm) or _wrong_decode(deep_gemm)
    except Exception as error:  # whatever breaks in it must not stop a start
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _case(tokens: int, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [tokens, H, D] e4m3, k [keys, D] e4m3, scales [keys] and weights [tokens, H] float32."""
    generator = torch.Generator("cuda").manual_seed(0)
    like: dict[str, Any] = {"device": "cuda", "generator": generator}
    q = torch.randn(tokens, _HEADS, _DIMS, **like).to(torch.float8_e4m3fn)
    k = torch.randn(keys, _DIMS, **like).to(torch.float8_e4m3fn)
    scales = torch.rand(keys, **like) + 0.5
    return q, k, scales, torch.randn(tokens, _HEADS, **like)


def _expected(q: Tensor, k: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    scores = torch.einsum("thd,kd->thk", q.float(), k.float()).relu()
    return torch.einsum("thk,th->tk", scores, weights) * scales


def _differs(name: str, found: Tensor, expected: Tensor) -> str | None:
    limit = _TOLERANCE * expected.abs().max()
    error = (found - expected).abs().max()
    return None if bool(error <= limit) else f"its {name} logits are off by {float(error):.3g}"


def _wrong_prefill(deep_gemm: Any) -> str | None:  # noqa: ANN401
    q, k, scales, weights = _case(128, 256)
    starts = torch.zeros(128, dtype=torch.int32, device="cuda")
    found = deep_gemm.fp8_fp4_mqa_logits(
        (q, None), (k, scales), weights, starts, starts + 256, clean_logits=False
    )
    return _differs("prefill", found[:, :256], _expected(q, k, scales, weights))


def _wrong_decode(deep_gemm: Any) -> str | None:  # noqa: ANN401
    q, k, scales, weights = _case(2, 2 * _BLOCK)
    cache = _paged(k, scales)
    lengths = torch.full((2, 1), 2 * _BLOCK, dtype=torch.int32, device="cuda")
    table = torch.tensor([[0, 1], [0, 1]], dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, _BLOCK, processors)
    found = deep_gemm.fp8_fp4_paged_mqa_logits(
        (q.unsqueeze(1), None), cache, weights, lengths, table, schedule,
        max_model_len=2 * _BLOCK, clean_logits=False,
    )  # fmt: skip
    return _differs("decode", found[:, : 2 * _BLOCK], _expected(q, k, scales, weights))


def _paged(k: Tensor, scales: Tensor) -> Tensor:
    """[blocks, 64, 1, 132] uint8: a block's values, then its scales."""
    blocks = k.shape[0] // _BLOCK
    values = k.view(torch.uint8).view(blocks, -1)
    tail = scales.view(blocks, _BLOCK).view(torch.uint8).view(blocks, -1)
    return torch.cat([values, tail], dim=1).view(blocks, _BLOCK, 1, _DIMS + 4)
