"""The top-k selection against torch.topk, and the bounded-memory pair against its two parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from glm5_kernel.ops import topk
from glm5_kernel.ops.configs import Device
from glm5_kernel.ops.indexer import decode_topk, prefill_topk
from glm5_kernel.ops.indexer_configs import (
    TOPK,
    ShortTopkConfig,
    TopkConfig,
    TopkPlan,
    topk_plan,
)
from glm5_kernel.ops.indexer_reference import (
    mqa_logits_reference,
    paged_mqa_logits_reference,
    row_lengths,
    topk_reference,
)
from glm5_kernel.ops.topk import _check_ranges, topk_indices, workspace_bytes
from torch import Tensor

from tests.kernel.indexer_support import (
    DEVICE,
    Paged,
    check_topk,
    paged_arguments,
    prefill_arguments,
    random_int,
)

SMALL = TopkConfig(tile=256, room=256, held=512, list=512, warps=4, programs=2)
"""So small that a short row goes all ways that a long one goes."""
SAMPLE = 128
KINDS = (
    "normal", "equal", "few values", "near ties", "sorted", "falling", "infinities", "signed zeros",
    "clump", "outlier", "every eighth", "huge range", "misleading",
)  # fmt: skip


def scores(kind: str, rows: int, columns: int) -> Tensor:
    """Rows that are each hard in another way."""
    x = torch.randn(rows, columns, device=DEVICE)
    if kind == "equal":
        x.fill_(1.5)
    elif kind == "few values":
        x = (x * 2).round() / 2
    elif kind == "near ties":
        x = 1 + random_int(0, 900, (rows, columns)) * 2.0**-23
    elif kind in ("sorted", "falling"):
        x = x.sort(descending=kind == "falling").values
    elif kind == "infinities":
        x[x > 1] = math.inf
        x[x < 0] = -math.inf
    elif kind == "signed zeros":
        x = torch.where(x > 1, x, torch.copysign(torch.zeros_like(x), x))
    elif kind == "clump":
        x[:, columns // 2 : columns // 2 + columns // 8] += 4
    elif kind == "outlier":
        x[:, columns // 3] = 1e30
    elif kind == "every eighth":
        x[:, ::8] += 5
    elif kind == "huge range":
        x = torch.exp(x * 20)
    elif kind == "misleading":
        x[:, sampled(columns, SAMPLE)] += 9
    return x


def sampled(columns: int, sample: int) -> Tensor:
    """What the kernel looks at first of a row that long: with the largest values there, it takes
    fewer than k for candidates."""
    at = torch.arange(sample + 1, device=DEVICE)
    starts = at * (columns // sample) + at * (columns % sample) // sample
    random = (at[:-1] * 2654435761 % 2**32) >> 16
    return starts[:-1] + (random * starts.diff() >> 16)


def full(rows: int, columns: int) -> Tensor:
    return torch.full((rows,), columns, dtype=torch.int32, device=DEVICE)


SIZES: dict[tuple[int, int], Sequence[tuple[str, bool]]] = {
    (1100, 60): tuple(itertools.product(KINDS, (True, False))),
    (400, 60): (("normal", True), ("few values", False), ("infinities", True)),
    (200, 60): (("normal", True), ("equal", False), ("signed zeros", True), ("infinities", False)),
    (1100, 1): (("normal", False), ("equal", True), ("near ties", True), ("outlier", False)),
    (3000, 200): (
        ("normal", True), ("normal", False), ("equal", True), ("equal", False),
        ("clump", True), ("every eighth", False), ("near ties", True), ("huge range", False),
    ),
}  # fmt: skip
"""Columns and k, with the rows of a plain run and whether programs share them: candidates that fit
in registers; rows that fit into more of them, and into as many; a single one; candidates that
have to be narrowed down."""


@pytest.mark.parametrize(
    ("kind", "split", "columns", "k"),
    [
        pytest.param(*row, *size, marks=() if row in SIZES[size] else pytest.mark.slow)
        for size in SIZES
        for row in itertools.product(KINDS, (True, False))
    ],
)
def test_exact_on_hard_rows(
    kind: str, split: bool, columns: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopkConfig, "sample", staticmethod(lambda _: SAMPLE))
    plan = TopkPlan(SMALL, 3 if split else 1, split)
    check_topk(scores(kind, 2, columns), k, ends=full(2, columns), force_plan=plan)


@pytest.mark.parametrize("kind", [*KINDS, "no numbers"])
@pytest.mark.parametrize("k", [1, 60, 1023])
def test_exact_on_hard_rows_that_fit_in_registers(kind: str, k: int) -> None:
    logits = scores(kind, 3, 1100)
    plan = TopkPlan(ShortTopkConfig(room=2048, warps=4), 3)
    starts = torch.tensor([0, 76, 5], dtype=torch.int32, device=DEVICE)
    ends = torch.tensor([1100, 1100, 900], dtype=torch.int32, device=DEVICE)
    if kind == "no numbers":
        logits[:, ::5] = math.nan
        got = topk_indices(logits, k, starts=starts, ends=ends, force_plan=plan)
        assert all(
            row[row >= 0].unique().numel() == min(k, n)
            for row, n in zip(got, ends - starts, strict=True)
        )
        if k == 1023:
            return
        wanted = [
            min(k, int(x[a:b].isnan().sum())) for x, a, b in zip(logits, starts, ends, strict=True)
        ]
        assert logits.gather(1, got.long() + starts[:, None]).isnan().sum(1).tolist() == wanted
        return
    check_topk(logits, k, starts=starts, ends=ends, force_plan=plan)


def test_a_row_must_fit_in_the_registers_it_is_to_be_held_in() -> None:
    plan = TopkPlan(ShortTopkConfig(room=256, warps=4), 1)
    with pytest.raises(ValueError, match="logits: got 257 columns; allowed: at most 256"):
        topk_indices(scores("normal", 1, 257), 8, ends=full(1, 257), force_plan=plan)


@pytest.mark.parametrize("k", [512, 2048])
@pytest.mark.parametrize("columns", [2049, 4096, 9000, 20_000])
def test_exact_with_the_real_configuration(columns: int, k: int) -> None:
    check_topk(scores("normal", 2, columns), k, ends=full(2, columns))


@pytest.mark.parametrize("columns", [9000, 20_000])
def test_rows_take_as_many_registers_as_they_have_values(columns: int) -> None:
    """From none to all that there are, in a matrix that is wide for longer rows."""
    starts = torch.tensor([0, 0, 7, 5000, 900, 30, 0], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([0, 100, 2000, 3000, 7000, 8900, 4096], dtype=torch.int32)
    ends = starts + lengths.to(DEVICE)
    check_topk(scores("normal", 7, columns), 512, starts=starts, ends=ends)
    check_topk(scores("near ties", 7, columns), 512, ends=ends)


@pytest.mark.parametrize("k", [1, 3, 100, 1000])
def test_ranges(k: int) -> None:
    """Empty, shorter and longer than k, at k, and beyond the matrix."""
    starts = torch.tensor([0, 5, 700, 0, 30, -4, 9, 899], dtype=torch.int32, device=DEVICE)
    ends = torch.tensor([0, 5 + k, 300, 900, 200, 50, 2**31 - 1, 900], dtype=torch.int32)
    logits = scores("normal", 8, 900)
    check_topk(logits, k, starts=starts, ends=ends.to(DEVICE))


def test_a_short_row_is_its_positions_in_order() -> None:
    got = topk_indices(scores("normal", 2, 50), 8, ends=torch.tensor([3, 8], dtype=torch.int32,
                       device=DEVICE))  # fmt: skip
    assert got.tolist() == [[0, 1, 2, -1, -1, -1, -1, -1], [0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("split", [True, False])
def test_of_equal_values_the_first_are_taken(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopkConfig, "sample", staticmethod(lambda _: SAMPLE))
    plan = TopkPlan(SMALL, 3 if split else 1, split)
    for columns in (200, 400, 1500):
        logits = torch.zeros(1, columns, device=DEVICE)
        logits[0, ::2] = -0.0  # which equals 0
        logits[0, columns - 7] = 1
        got = topk_indices(logits, 50, ends=full(1, columns), force_plan=plan)
        assert sorted(got[0].tolist()) == [*range(49), columns - 7]
    few = torch.zeros(1, 1500, device=DEVICE)  # ties among the candidates of a list
    few[0, torch.randperm(1500)[:70]] = 1
    ones = few[0].nonzero().flatten().tolist()
    got = topk_indices(few, 50, ends=full(1, 1500), force_plan=plan)
    assert sorted(got[0].tolist()) == ones[:50]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("columns", [200, 1100])
def test_nan_neither_hangs_nor_leaves_the_row(
    columns: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopkConfig, "sample", staticmethod(lambda _: SAMPLE))
    logits = scores("normal", 3, columns)
    logits[0] = math.nan
    logits[1, ::2] = -math.nan
    logits[2, 50] = math.nan
    plan = TopkPlan(SMALL, 3 if split else 1, split)
    got = topk_indices(logits, 60, ends=full(3, columns), force_plan=plan)
    assert bool(((got >= 0) & (got < columns)).all())
    assert all(row.unique().numel() == 60 for row in got)


def test_nothing_outside_a_range_is_chosen() -> None:
    logits = torch.full((2, 600), math.inf, device=DEVICE)
    logits[:, 100:400] = scores("normal", 2, 300)
    starts = torch.full((2,), 100, dtype=torch.int32, device=DEVICE)
    check_topk(logits, 40, starts=starts, ends=starts + 300)


@pytest.mark.parametrize("split", [True, False])
def test_a_workspace_is_left_as_it_was(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopkConfig, "sample", staticmethod(lambda _: SAMPLE))
    space = torch.zeros(1 << 18, dtype=torch.uint8, device=DEVICE)
    plan = TopkPlan(SMALL, 3, split)
    for kind in ("normal", "equal", "clump", "infinities"):
        check_topk(scores(kind, 3, 2000), 60, ends=full(3, 2000), workspace=space, force_plan=plan)
        assert not bool(space[: SMALL.counter_bytes].any())


def test_two_tokens_of_a_request() -> None:
    logits = scores("normal", 6, 300)
    lengths = torch.tensor([300, 2, 41], dtype=torch.int32, device=DEVICE)
    check_topk(logits, 40, ends=lengths)
    check_topk(logits, 40, ends=row_lengths(lengths, 2).view(3, 2))


def test_plans_fit_their_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    for arch in TOPK:
        table = arch, Device(processors=132, shared=0)
        monkeypatch.setattr(topk, "device_table", lambda _, table=table: table)
        for rows in (1, 3, 60, 100, 264, 265, 5000):
            for columns in (100, 5000, 200_000):
                plan = topk_plan(arch, rows, columns, 132)
                if isinstance(plan.config, ShortTopkConfig):
                    assert columns <= plan.config.room
                    continue
                lists = rows if plan.split else plan.parts
                ends = topk._workspace_ends(plan, rows)
                assert ends is not None
                assert 8 * lists <= ends[0]
                assert ends[-1] <= topk.workspace_bytes(rows)
                assert plan.programs(rows) <= 2 * 132


def test_prefill_in_chunks() -> None:
    arguments = prefill_arguments(11, 150, heads=4)
    starts, ends = arguments["starts"], arguments["ends"]
    wanted = mqa_logits_reference(**arguments).float()
    for more in ({}, {"logits_bytes": 4 * 150 * 4}, {"logits": torch.empty(310, device=DEVICE)}):
        got = prefill_topk(*arguments.values(), 20, **more)
        check_selection(got, wanted, starts, ends)


@pytest.mark.parametrize("next_n", [1, 2])
def test_decode_in_chunks(next_n: int) -> None:
    arguments = paged_arguments(Paged(batch=5, next_n=next_n, heads=4, context=130))
    wanted = paged_mqa_logits_reference(**arguments).float()
    ends = row_lengths(arguments["context_lens"], next_n)
    columns = arguments.pop("max_context")
    for bytes_ in (1 << 20, 4 * 140 * 2 * next_n):
        got = decode_topk(*arguments.values(), 20, max_context=columns, logits_bytes=bytes_)
        check_selection(got, wanted, torch.zeros_like(ends), ends)


def check_selection(got: Tensor, scores: Tensor, starts: Tensor, ends: Tensor) -> None:
    """The chosen scores are the largest, up to rounding."""
    k = got.shape[1]
    wanted = topk_reference(scores, k, starts, ends)
    columns = (got + starts[:, None]).clamp(0, scores.shape[1] - 1).long()
    found = scores.gather(1, columns).masked_fill(got < 0, -math.inf).sort(descending=True).values
    assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)
    counts = (ends - starts).clamp(0, k)
    assert torch.equal((got >= 0).sum(1), counts.long())


def test_scores_of_one_that_do_not_fit_are_refused() -> None:
    arguments = prefill_arguments(2, 150, heads=4)
    with pytest.raises(ValueError, match="logits_bytes: got room for 25 scores; allowed: at least"):
        prefill_topk(*arguments.values(), 20, logits_bytes=100)


WRONG: dict[str, dict[str, Any]] = {
    "logits: got float64; allowed: float32": {"logits": torch.zeros(2, 9, dtype=torch.float64)},
    "logits: got 1 dims; allowed: 2": {"logits": torch.zeros(9)},
    "k: got 2049; allowed: 1 to 2048": {"k": 2049},
    "k: got 0; allowed: 1 to 2048": {"k": 0},
    "ends: got int64; allowed: int32": {"ends": torch.zeros(2, dtype=torch.int64)},
    "ends: got shape [3]; allowed: [2], or [B] or [B, n] with B x n = 2": {
        "ends": torch.zeros(3, dtype=torch.int32)
    },
    "starts: got shape [1]; allowed: [2]": {"starts": torch.zeros(1, dtype=torch.int32)},
    "out: got shape [2, 3]; allowed: [2, 4]": {"out": torch.zeros(2, 3, dtype=torch.int32)},
    "workspace: got 16 bytes; allowed: at least": {"workspace": torch.zeros(16, dtype=torch.uint8)},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_named(message: str) -> None:
    wrong = {n: v.to(DEVICE) if isinstance(v, Tensor) else v for n, v in WRONG[message].items()}
    # So wide that a workspace is needed.
    logits = torch.zeros(2, 99_999, device=DEVICE)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        topk_indices(**{"logits": logits, "k": 4, "ends": full(2, 9)} | wrong)
    assert str(caught.value).startswith(message)


def test_what_the_kernels_cannot_count_to_is_refused() -> None:
    """Tiles beyond a row's last, and places of ends, are int32: others would be read elsewhere."""
    wide = torch.empty(1, 2**29 + 1, device=DEVICE)
    with pytest.raises(ValueError, match="logits: got 536870913 columns; allowed: at most"):
        topk_indices(wide, 4, ends=full(1, 9))
    logits = torch.empty(3, 9, device="meta")
    for shape, strides in (((3,), (2**30, 1)), ((1, 3), (1, 2**30))):
        ends = torch.empty_strided(shape, strides[: len(shape)], dtype=torch.int32, device="meta")
        with pytest.raises(ValueError, match=r"ends: got strides .* allowed: all within 2\^31"):
            _check_ranges(logits, None, ends)


def test_no_row() -> None:
    got = topk_indices(torch.zeros(0, 9, device=DEVICE), 4, ends=full(0, 0))
    assert got.shape == (0, 4)


def test_workspace_bytes_cover_every_batch() -> None:
    columns = 17_000  # so many that they do not fit in registers
    space = torch.zeros(workspace_bytes(5, device=DEVICE), dtype=torch.uint8, device=DEVICE)
    for rows in (1, 2, 5):
        logits, ends = scores("normal", rows, columns), full(rows, columns)
        check_topk(logits, 30, ends=ends, workspace=space)
        too_small = space[: workspace_bytes(rows, device=DEVICE) - 1]
        with pytest.raises(ValueError, match="workspace: got"):
            topk_indices(logits, 30, ends=ends, workspace=too_small)
