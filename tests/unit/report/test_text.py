from __future__ import annotations

import pytest
from glm5_deploy.report.text import clean, colour, one_line, seconds
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1b(Bb", "ab"),
        ("bell\x07 back\x08space\x00", "bell backspace"),
        ("\x9b2Jcleared", "cleared"),
        ("right‮left", "rightleft"),
        ("[bold]markup stays text[/bold]", "[bold]markup stays text[/bold]"),
        ("tab\there\r\nnext", "tab    here\nnext"),
        ("ünïcödé ✓ 日本", "ünïcödé ✓ 日本"),
    ],
)
def test_clean(dirty: str, expected: str) -> None:
    assert clean(dirty) == expected


@given(st.text())
def test_clean_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    assert not any((ord(c) < 32 and c != "\n") or c in "\x7f\x9b\x1b" for c in clean(text))


def test_one_line() -> None:
    assert one_line(" a\n b\t\tc ") == "a b c"


def test_colour_depends_on_the_name_alone() -> None:
    assert colour("bw1") == colour("bw1")
    assert len({colour(f"bw{i}") for i in range(7)}) == 7


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (12.3, "12 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (100000, "1 d 03 h"),
    ],
)
def test_seconds(value: float, expected: str) -> None:
    assert seconds(value) == expected
