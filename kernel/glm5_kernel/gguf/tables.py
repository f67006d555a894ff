"""Text in columns that fit a width: what is too long goes on below, nothing is cut off."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

GAP = "  "
FALLBACK = 100
"""Columns where the output is no terminal."""
TOGETHER = "\N{NO-BREAK SPACE}"
"""Stands for a space at which a cell must not be broken."""


def terminal_width() -> int:
    """Columns of the terminal that standard output is, else `FALLBACK`."""
    if not sys.stdout.isatty():
        return FALLBACK
    return shutil.get_terminal_size((FALLBACK, 24)).columns


def hanging(first: str, text: str, width: int) -> list[str]:
    """Lines of a text behind what it begins with; further ones are indented as far.

    Words stay whole: one that is longer than the width, such as a path, makes a longer line.
    """
    head, *more = _wrapped(text, width - len(first))
    return [first + head, *(" " * len(first) + line for line in more)]


def table(rows: Sequence[Sequence[str]], right: set[int], width: int) -> list[str]:
    """Lines of a table whose first row is its head, underlined.

    Args:
        right: columns of numbers, which are never broken; the others are, where it is too wide.
    """
    widths = _widths(rows, right, width)
    lines: list[str] = []
    heads = 0
    for row in rows:
        lines += _lines(row, widths, right)
        heads = heads or len(lines)
    return [*lines[:heads], "-" * max(map(len, lines)), *lines[heads:]]


def _widths(rows: Sequence[Sequence[str]], right: set[int], width: int) -> list[int]:
    """Of each column: the widest ones give way, but not below their longest word."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    least = [
        full if number in right else max(len(word) for cell in cells for word in cell.split(" "))
        for number, (full, cells) in enumerate(zip(widths, columns, strict=True))
    ]
    room = width - len(GAP) * (len(widths) - 1)
    while sum(widths) > room:
        loose = [number for number, full in enumerate(widths) if full > least[number]]
        if not loose:
            break
        widths[max(loose, key=widths.__getitem__)] -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: set[int]) -> list[str]:
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        placed = [
            part.rjust(width) if number in right else part.ljust(width)
            for number, (part, width) in enumerate(zip(parts, widths, strict=True))
        ]
        lines.append(GAP.join(placed).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace(TOGETHER, " ") for line in lines] or [""]
