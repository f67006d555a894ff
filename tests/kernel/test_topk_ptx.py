"""The top-k kernel's PTX, which Triton's interpreter passes over, run thread by thread."""

from __future__ import annotations

import re

import numpy as np
import pytest
from glm5_kernel.ops.topk_ptx import (
    claim_code,
    count_code,
    counter_code,
    largest_code,
    tally_code,
)
from numpy.typing import NDArray

from tests.kernel.ptx import Program, PtxError

NOTHING = -1
SHAPES = ((4, 2), (8, 8), (16, 4), (4, 16), (32, 1))
"""Warps, and values of a thread."""
KINDS = (
    "normal", "equal", "few values", "near ties", "infinities", "no numbers", "hardly a number",
    "outlier", "huge range", "clump", "signed zeros", "denormal", "far away", "negative", "widest",
)  # fmt: skip

Words = NDArray[np.int32]


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
        x[::7] = -np.nan
    elif kind == "hardly a number":
        x[:] = np.nan
        x[3] = 1
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
    elif kind == "far away":
        x = 1000 + 1e-3 * x
    elif kind == "negative":
        x = -np.abs(x)
    elif kind == "widest":
        x = np.sign(x) * 3.4e38
    return x.astype(np.float32)


def bits(x: NDArray[np.float32]) -> Words:
    return x.view(np.int32).copy()


def keys(given: Words) -> Words:
    """Whole numbers in the order of the values; both zeros have the same, NaN the largest."""
    x = given.view(np.float32)
    found = (x + np.float32(0)).view(np.int32)
    return np.where(np.isnan(x), 2**31 - 1, found ^ ((found >> 31) & 0x7FFFFFFF)).astype(np.int32)


def largest(
    program: Program, each: int, given: Words, indices: Words, k: int, slack: int = 0
) -> Words:
    """What the program puts out for each value; a thread has every `threads`-th."""
    n = np.count_nonzero(given != NOTHING)
    numbers = [np.full(program.threads, number, np.int32) for number in (k, slack, n)]
    operands = [*given.reshape(each, -1), *indices.reshape(each, -1)]
    operands += [number for number in numbers for _ in range(each)]
    found = program.run([operand.view(np.uint32) for operand in operands], each)
    return np.concatenate(found).view(np.int32)


def wanted(given: Words, indices: Words, k: int) -> NDArray[np.bool_]:
    """The k largest values; of equal ones those with the smallest indices."""
    found = np.zeros(len(given), np.bool_)
    order = np.where(given == NOTHING, 2**31, -keys(given).astype(np.int64))
    found[np.lexsort((indices, order))[:k]] = True
    return found


def check(program: Program, each: int, given: Words, indices: Words, k: int) -> None:
    found = largest(program, each, given, indices, k)
    np.testing.assert_array_equal(found >= 0, wanted(given, indices, k))
    assert sorted(found[found >= 0]) == list(range(k))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warps", "each"), SHAPES)
def test_the_largest(kind: str, warps: int, each: int) -> None:
    program, size = Program(largest_code(each, warps, True), 32 * warps), 32 * warps * each
    random = np.random.default_rng(SHAPES.index((warps, each)))
    for n, k in ((size, size // 2), (size - 7, 1), (size // 2, size // 2), (size - 9, size - 11)):
        given = bits(values(kind, size, random))
        given[n:] = NOTHING
        check(program, each, given, 3 * random.permutation(size).astype(np.int32), k)


def test_slack_saves_passes_and_passes_over_none() -> None:
    program, random = Program(largest_code(8, 4, False), 128), np.random.default_rng(3)
    for kind in ("normal", "near ties", "few values", "outlier"):
        given = bits(values(kind, 1024, random))
        indices = np.arange(1024, dtype=np.int32)
        found = largest(program, 8, given, indices, 300, 40)
        taken = found == 0
        assert (found[~taken] == -1).all()
        assert 300 <= taken.sum() <= 340
        assert keys(given)[taken].min() >= keys(given)[~taken].max()


def test_every_barrier_is_needed() -> None:
    """Without one of them two warps meet in shared memory, which the threads' order would hide."""
    parts = largest_code(2, 4, True).split("bar.sync 0;")
    assert len(parts) == 7
    # So many of them are equal that a warp compares them, or too many for that.
    given = [
        bits(values(kind, 256, np.random.default_rng(4))) for kind in ("near ties", "few values")
    ]
    for number in range(1, len(parts)):
        less = [*parts[: number - 1], "".join(parts[number - 1 : number + 1]), *parts[number + 1 :]]
        program = Program("bar.sync 0;".join(less), 128)
        with pytest.raises((PtxError, AssertionError)):
            check_all(program, given)


def check_all(program: Program, given: list[Words]) -> None:
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


def claims(each: int, space: str) -> list[str]:
    """A counter, claims of it, what they came to, and both of these again.

    Operands: numbers of the last claim, both counts, hits.
    """
    names = [*range(each), *range(each + 2, 2 * each + 2), "where"]

    def name(operand: re.Match[str]) -> str:
        found = names[min(int(operand[1]), 2 * each)]
        return found if isinstance(found, str) else f"${found}"

    claim = re.sub(r"\$(\d+)", name, claim_code(each, space))
    counts = [count_code().replace("$1", "where").replace("$0", f"${each + i}") for i in range(2)]
    parts = [counter_code().replace("$0", "where"), claim, counts[0], claim, counts[1]]
    return "".join(part.strip()[1:-1] for part in parts).split("bar.sync 0;")


def check_claims(program: Program, each: int, hits: Words) -> None:
    found = program.run([*hits.reshape(each, -1).view(np.uint32)], each + 2)
    for count in found[each:]:
        np.testing.assert_array_equal(count, hits.sum())
    numbers = np.concatenate(found[:each])[hits == 1]
    assert sorted(numbers) == list(range(hits.sum()))


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize(("warps", "each"), SHAPES)
def test_claims(warps: int, each: int, space: str) -> None:
    program = Program("{" + "bar.sync 0;".join(claims(each, space)) + "}", 32 * warps)
    random = np.random.default_rng(6)
    for share in (0, 0.02, 0.5, 1):
        hits = (random.random(32 * warps * each) < share).astype(np.int32)
        check_claims(program, each, hits)


def test_every_barrier_of_a_counter_is_needed() -> None:
    parts = claims(2, "shared")
    assert len(parts) == 8
    # The last one is for what follows.
    for number in range(1, len(parts) - 1):
        less = [*parts[: number - 1], "".join(parts[number - 1 : number + 1]), *parts[number + 1 :]]
        program = Program("{" + "bar.sync 0;".join(less) + "}", 128)
        with pytest.raises((PtxError, AssertionError)):
            check_claims(program, 2, np.ones(256, np.int32))
