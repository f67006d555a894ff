"""The top-k of long rows where it is easily wrong: as many candidates as there is just room for,
NaN among them, rows that begin anywhere, and the threshold that the sample gives."""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from glm5_kernel.ops import topk
from glm5_kernel.ops.indexer_configs import TopkConfig, TopkPlan
from glm5_kernel.ops.topk import topk_indices
from glm5_kernel.ops.topk_kernel import _threshold, threshold_rank
from torch import Tensor

from tests.kernel.indexer_support import DEVICE, check_topk, random_int
from tests.kernel.test_indexer_topk import SAMPLE, SMALL, full, sampled

COLUMNS = 1500
ROOM, LIST = SMALL.room, SMALL.list


@pytest.fixture(autouse=True)
def _small_sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(TopkConfig, "sample", staticmethod(lambda _: SAMPLE))
        yield


def plan(split: bool) -> TopkPlan:
    return TopkPlan(SMALL, 3 if split else 2, split)


def workspace(chosen: TopkPlan, rows: int) -> Tensor:
    """Exactly as much as is needed, full of what would be a candidate if it were read."""
    ends = topk._workspace_ends(chosen, rows)
    assert ends is not None
    space = torch.full((ends[-1],), 0x7F, dtype=torch.uint8, device=DEVICE)
    space[: ends[0]] = 0
    return space


def with_candidates(count: int, *, tied: bool) -> Tensor:
    """A row of which as many values reach the threshold: a hundred of the sample are 1, the rest of
    them are larger and lie where the sample does not look."""
    row = -1 - torch.rand(COLUMNS, device=DEVICE)
    looked_at = sampled(COLUMNS, SAMPLE)
    seen = min(count, 100)
    row[looked_at[torch.randperm(SAMPLE, device=DEVICE)[:seen]]] = 1.0
    others = torch.ones(COLUMNS, dtype=torch.bool, device=DEVICE)
    others[looked_at] = False
    places = others.nonzero().flatten()
    places = places[torch.randperm(len(places), device=DEVICE)[: count - seen]]
    row[places] = 1.0 if tied else 2 + torch.rand(len(places), device=DEVICE)
    return row


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("k", [40, ROOM - 1, ROOM])
def test_as_many_candidates_as_there_is_room_for(k: int, tied: bool, split: bool) -> None:
    counts = {at + more for at in (k, ROOM, LIST) for more in (-1, 0, 1, 2)}
    logits = torch.stack([with_candidates(count, tied=tied) for count in sorted(counts)])
    rows, chosen = len(counts), plan(split)
    space = workspace(chosen, rows)
    check_topk(logits, k, ends=full(rows, COLUMNS), force_plan=chosen, workspace=space)
    assert not bool(space[: SMALL.counter_bytes].any())


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("k", [60, 250])
def test_nan_is_larger_than_everything(k: int, split: bool) -> None:
    counts = (1, 20, k - 1, k, k + 1, 200, ROOM, ROOM + 1, LIST + 1)
    logits = torch.randn(len(counts), COLUMNS, device=DEVICE)
    logits[:, :9] = math.inf
    bits = logits.view(torch.int32)
    for row, count in zip(bits, counts, strict=True):
        kinds = torch.tensor([0x7FC00000, -1, -0x400000], dtype=torch.int32, device=DEVICE)
        row[torch.randperm(COLUMNS, device=DEVICE)[:count]] = kinds.repeat(count)[:count]
    chosen = plan(split)
    space = workspace(chosen, len(counts))
    got = topk_indices(
        logits, k, ends=full(len(counts), COLUMNS), force_plan=chosen, workspace=space
    )
    assert bool(((got >= 0) & (got < COLUMNS)).all())
    for row, found, count in zip(logits, got.long(), counts, strict=True):
        assert found.unique().numel() == k
        if count < k:
            assert int(row[found].isnan().sum()) == count
            wanted = row[~row.isnan()].topk(k - count).values
            values = row[found]
            assert torch.equal(values[~values.isnan()].sort(descending=True).values, wanted)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("next_n", [1, 2, 3])
def test_rows_that_begin_anywhere(next_n: int, split: bool) -> None:
    """With the end of a request's last row alone, and a result whose rows lie apart."""
    rows, k = 6, 60
    logits = torch.randn(rows, COLUMNS + 40, device=DEVICE)[:, :COLUMNS]
    starts = torch.tensor([3, 0, 700, 999, 41, 17], dtype=torch.int32, device=DEVICE)
    ends = random_int(COLUMNS - 60, COLUMNS + 3, (rows // next_n,))
    logits.scatter_(1, (starts.long() - 1).clamp(min=0)[:, None], 99.0)  # outside, or column 0
    for row, end in enumerate(ends.repeat_interleave(next_n).tolist()):
        less = next_n - 1 - row % next_n
        logits[row, end - less :] = 99.0
    out = torch.full((rows, k + 5), -7, dtype=torch.int32, device=DEVICE)
    check_topk(logits, k, starts=starts, ends=ends, out=out[:, :k], force_plan=plan(split))
    assert bool((out[:, k:] == -7).all())


@triton.jit
def threshold_kernel(
    p_out, p_rank, p_row, n, k, SAMPLE: tl.constexpr, ROOM: tl.constexpr, WARPS: tl.constexpr
) -> None:
    tl.store(p_out, _threshold(p_row, n, k, SAMPLE, ROOM, WARPS))
    tl.store(p_rank, threshold_rank(n, k, SAMPLE, ROOM))


@pytest.mark.parametrize("n", [513, 600, COLUMNS, 5000])
@pytest.mark.parametrize("k", [1, 40, 256])
def test_the_threshold_is_the_samples(n: int, k: int) -> None:
    row = torch.randn(n, device=DEVICE)
    out = torch.zeros(1, device=DEVICE)
    rank = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    threshold_kernel[(1,)](out, rank, row, n, k, SAMPLE, ROOM, 4, num_warps=4)
    ordered = row[sampled(n, SAMPLE)].sort(descending=True).values
    last = int(rank) - 1
    slack = min(int(rank) // 16, SAMPLE - 1 - last)
    assert float(ordered[last + slack]) <= float(out) <= float(ordered[last])
