"""How often the sample of a long row gives it too few candidates, or too many."""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from glm5_kernel.ops.indexer_configs import TOPK
from glm5_kernel.ops.topk_kernel import threshold_rank

from tests.kernel.indexer_support import DEVICE


@triton.jit
def rank_kernel(p_out, n, k, SAMPLE: tl.constexpr, ROOM: tl.constexpr) -> None:
    tl.store(p_out, threshold_rank(n, k, SAMPLE, ROOM))


def rank_of(n: int, k: int, sample: int, room: int) -> int:
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    rank_kernel[(1,)](out, n, k, sample, room)
    return int(out)


def chance(found: range, marked: int, n: int, sample: int) -> float:
    """The probability that `sample` of n values, drawn anyhow, hold so many of those marked."""

    def ways(of: int, drawn: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(drawn + 1) - math.lgamma(of - drawn + 1)

    possible = range(max(found.start, sample - n + marked), min(found.stop, marked + 1, sample + 1))
    return math.fsum(
        math.exp(ways(marked, i) + ways(n - marked, sample - i) - ways(n, sample)) for i in possible
    )


@pytest.mark.parametrize(
    ("n", "k", "few", "many"),
    [
        (16_385, 2048, 1e-6, 1e-12),
        (32_768, 2048, 1e-6, 1e-4),
        (32_768, 512, 2e-6, 1e-12),
        (65_536, 2048, 2e-4, 1e-2),
        (65_537, 2048, 1e-6, 1e-4),
        (131_072, 2048, 2e-4, 1e-2),
        (131_072, 512, 2e-6, 1e-12),
        (202_752, 2048, 2e-4, 0.1),
        (524_288, 100, 2e-5, 1e-6),
    ],
)
def test_candidates_are_seldom_too_few_or_too_many(n: int, k: int, few: float, many: float) -> None:
    config = TOPK["sm90"].many
    sample = config.sample(n)
    rank, share = rank_of(n, k, sample, config.room), sample / n
    # Too few: of those that are larger than the k-th, as many are in the sample. A sixteenth more
    # than the rank may be taken; too many: not that many are in it of more than there is room for.
    assert chance(range(rank, sample + 1), k - 1, n, sample) < few
    assert chance(range(rank * 17 // 16 + 1), config.room + 1, n, sample) < many
    assert k <= rank / share < config.list


@pytest.mark.parametrize(
    ("n", "k"), [(2049, 2048), (4097, 2048), (9000, 2048), (16_385, 1), (10**6, 2048)]
)
def test_a_rank_is_within_the_sample(n: int, k: int) -> None:
    config = TOPK["sm90"].many
    assert 1 <= rank_of(n, k, config.sample(n), config.room) <= config.sample(n)
