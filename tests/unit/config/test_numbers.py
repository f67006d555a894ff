"""What vLLM's command line takes as a number (vllm/utils/argparse_utils.py, 0.26.0)."""

from __future__ import annotations

import pytest
from glm5_deploy.config.numbers import fraction, is_automatic, whole


@pytest.mark.parametrize(
    ("key", "value", "number"),
    [
        ("max-model-len", "1k", 1000),
        ("max-model-len", "1K", 1024),
        ("max-model-len", "25.6k", 25_600),
        ("max-model-len", "25.6K", None),
        ("max-model-len", " 128k ", 128_000),
        ("max-num-batched-tokens", "2m", 2_000_000),
        ("kv-cache-memory-bytes", "3G", 3 * 2**30),
        ("kv-cache-memory-bytes", "1.5t", 1_500_000_000_000),
        ("max-model-len", "131_072", 131_072),
        ("max-model-len", 131072.0, None),
        ("max-model-len", True, None),
        ("max-model-len", "auto", None),
        ("max-num-seqs", "1k", None),
        ("tensor-parallel-size", 8, 8),
        ("tensor-parallel-size", "8", 8),
        ("tensor-parallel-size", [8], None),
    ],
)
def test_whole_numbers(key: str, value: object, number: int | None) -> None:
    assert whole(key, value) == number


@pytest.mark.parametrize(
    ("value", "number"), [(0.92, 0.92), ("0.92", 0.92), (1, 1.0), (True, None), ("most", None)]
)
def test_fractions(value: object, number: float | None) -> None:
    assert fraction(value) == number


@pytest.mark.parametrize(
    ("value", "expected"), [("auto", True), ("Auto", True), (-1, True), (1, False), (None, False)]
)
def test_a_length_left_to_vllm(value: object, expected: bool) -> None:
    assert is_automatic(value) is expected
