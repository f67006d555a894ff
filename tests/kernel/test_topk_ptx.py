"""The top-k kernel's PTX, which Triton's interpreter passes over, run thread by thread."""

from __future__ import annotations

import numpy as np
import pytest
from glm5_kernel.ops.topk_ptx import largest_code, tally_code
from numpy.typing import NDArray

from tests.kernel.ptx import Program, PtxError

ABSENT, MOST = -(2**31), 2**31 - 2
SHAPES = ((4, 2), (8, 8), (16, 4))
"""Warps, and keys of a thread."""
KINDS = (
    "normal", "equal", "few values", "near ties", "infinities", "no numbers", "outlier",
    "huge range", "clump", "signed zeros", "denormal",
)  # fmt: skip

Keys = NDArray[np.int32]


def values(kind: str, size: int, random: np.random.Generator) -> NDArray[np.float32]:
    x = random.standard_normal(size)
    if kind == "equal":
        x[:] = 1.5
    elif kind == "few values":
        x = np.round(x * 2) / 2
    elif kind == "near ties":
        x = 1 + random.integers(0, 40, size) * 2.0**-23
    elif kind == "infinities":
        x[x > 1], x[x < 0] = np.inf, -np.inf
    elif kind == "no numbers":
        x[::5] = np.nan
    elif kind == "outlier":
        x[size // 3] = 1e30
    elif kind == "huge range":
        x = np.clip(np.exp(x * 20), 0, 3e38)
    elif kind == "clump":
        x[: size // 2] = 1 + 1e-6 * x[: size // 2]
    elif kind == "signed zeros":
        x = np.where(x > 1, x, np.copysign(0, x))
    elif kind == "denormal":
        x = x * 1e-41
    return x.astype(np.float32)


def keys(x: NDArray[np.float32]) -> Keys:
    bits = (x + np.float32(0)).view(np.int32)
    found = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return np.where(np.isnan(x), MOST, found).astype(np.int32)


def largest(
    program: Program, each: int, given: Keys, indices: Keys, k: int, slack: int = 0
) -> Keys:
    """What the program puts out for each key; a thread has every `threads`-th."""
    k_and_slack = [np.full(program.threads, number, np.int32) for number in (k, slack)]
    operands = [*given.reshape(each, -1), *indices.reshape(each, -1)]
    operands += [number for number in k_and_slack for _ in range(each)]
    found = program.run([operand.view(np.uint32) for operand in operands], each)
    return np.concatenate(found).view(np.int32)


def wanted(given: Keys, indices: Keys, k: int) -> NDArray[np.bool_]:
    """The k largest keys; of equal ones those with the smallest indices."""
    found = np.zeros(len(given), np.bool_)
    found[np.lexsort((indices, -given.astype(np.int64)))[:k]] = True
    return found


def check(program: Program, each: int, given: Keys, indices: Keys, k: int) -> None:
    found = largest(program, each, given, indices, k)
    np.testing.assert_array_equal(found >= 0, wanted(given, indices, k))
    assert sorted(found[found >= 0]) == list(range(k))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warps", "each"), SHAPES)
def test_the_largest(kind: str, warps: int, each: int) -> None:
    program, size = Program(largest_code(each, warps, True), 32 * warps), 32 * warps * each
    random = np.random.default_rng(SHAPES.index((warps, each)))
    for n, k in ((size, size // 2), (size - 7, 1), (size // 2, size // 2), (size - 9, size - 11)):
        given = keys(values(kind, size, random))
        given[n:] = ABSENT
        check(program, each, given, 3 * random.permutation(size).astype(np.int32), k)


def test_slack_saves_passes_and_passes_over_none() -> None:
    program, random = Program(largest_code(8, 4, False), 128), np.random.default_rng(3)
    for kind in ("normal", "near ties", "few values", "outlier"):
        given = keys(values(kind, 1024, random))
        indices = np.arange(1024, dtype=np.int32)
        found = largest(program, 8, given, indices, 300, 40)
        taken = found == 0
        assert (found[~taken] == -1).all()
        assert 300 <= taken.sum() <= 340
        assert given[taken].min() >= given[~taken].max()


def test_every_barrier_is_needed() -> None:
    """Without one of them two warps meet in shared memory, which the threads' order would hide."""
    parts = largest_code(2, 4, True).split("bar.sync 0;")
    assert len(parts) == 6
    # So many of them are equal that a warp compares them, or too many for that.
    given = [
        keys(values(kind, 256, np.random.default_rng(4))) for kind in ("near ties", "few values")
    ]
    for number in range(1, len(parts)):
        less = [*parts[: number - 1], "".join(parts[number - 1 : number + 1]), *parts[number + 1 :]]
        program = Program("bar.sync 0;".join(less), 128)
        with pytest.raises((PtxError, AssertionError)):
            check_all(program, given)


def check_all(program: Program, given: list[Keys]) -> None:
    for each in given:
        check(program, 2, each, np.arange(256, dtype=np.int32), 100)


@pytest.mark.parametrize(("warps", "each", "bins"), [(4, 2, 128), (8, 8, 1024)])
def test_a_histogram(warps: int, each: int, bins: int) -> None:
    threads = 32 * warps
    size = threads * each
    random = np.random.default_rng(5)
    given = random.integers(-3, bins + 9, size).astype(np.int32)
    read = (np.arange(size) & (bins - 1)).astype(np.int32)
    operands = [*given.reshape(each, -1), *read.reshape(each, -1)]
    program = Program(tally_code(each, bins), threads)
    found = np.concatenate(program.run([each.view(np.uint32) for each in operands], each))
    inside = given[(given >= 0) & (given < bins)]
    np.testing.assert_array_equal(found[:bins], np.bincount(inside, minlength=bins))
