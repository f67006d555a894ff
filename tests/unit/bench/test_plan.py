"""Which loads are measured."""

from __future__ import annotations

import pytest
from glm5_deploy.bench.plan import Wanted, loads, parse_numbers
from glm5_deploy.errors import PreflightError, UsageError


def words(wanted: Wanted, room: int | None) -> list[str]:
    return [load.word() for load in loads(wanted, room)]


@pytest.mark.parametrize(
    ("wanted", "room", "expected"),
    [
        (Wanted(), None, "1:1000:4 8:1000:16 64:1000:128 1:8000:3 8:8000:8 64:8000:64"),
        (Wanted(), 131072, "1:1000:4 8:1000:16 64:1000:128 1:8000:3 8:8000:8 64:8000:64"),
        (Wanted(), 8144, "1:1000:4 8:1000:16 64:1000:128 1:8000:3 8:8000:8 64:8000:64"),
        # what does not fit is left out
        (Wanted(), 8143, "1:1000:4 8:1000:16 64:1000:128"),
        # where nothing fits, the longest that does
        (Wanted(concurrency=(4,)), 512, "4:368:8"),
        # from light to heavy, whatever the order was
        (Wanted((8, 1), (200, 100)), 512, "1:100:4 8:100:16 1:200:4 8:200:16"),
        (Wanted((2,), (100,), requests=5), 512, "2:100:5"),
    ],
)
def test_loads(wanted: Wanted, room: int | None, expected: str) -> None:
    assert words(wanted, room) == expected.split()


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        (Wanted(prompt_tokens=(100, 400)), "--prompt-tokens 368"),
        (Wanted(output_tokens=512), "--output-tokens 128"),
        (Wanted(prompt_tokens=(100,), output_tokens=600), "--output-tokens 128"),
    ],
)
def test_what_does_not_fit_is_refused(wanted: Wanted, hint: str) -> None:
    with pytest.raises(PreflightError, match="do not fit into the 512 tokens") as refused:
        loads(wanted, 512)
    assert refused.value.hint == hint


def test_the_largest_number_is_taken() -> None:
    assert parse_numbers("--concurrency", "1000000") == (1_000_000,)


def test_numbers_are_taken_once_each() -> None:
    assert parse_numbers("--concurrency", "8, 1,8") == (8, 1)


@pytest.mark.parametrize(
    "text", ["", "1,", "0", "-1", "1.5", "8k", "1;2", "²", "1000001", "9" * 5000]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--concurrency") as refused:
        parse_numbers("--concurrency", text)
    assert refused.value.hint == "separate numbers with commas: --concurrency 1,8"
    assert len(refused.value.message) < 150


def test_a_load_that_would_fill_the_memory_of_the_host_is_refused() -> None:
    assert words(Wanted((50_000,), (1000,)), None) == ["50000:1000:100000"]
    with pytest.raises(PreflightError, match=r"50,001 requests .* 100,002,000 tokens") as refused:
        loads(Wanted((1,), (2000,), requests=50_001), None)
    assert refused.value.hint == "--requests 50000"
