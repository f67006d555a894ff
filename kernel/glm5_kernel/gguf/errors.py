"""What is wrong with a file, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class GgufError(ValueError):
    """A GGUF file, or a split of several, that cannot be used.

    Attributes:
        problems: one sentence each, with the file's name; never empty.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        told = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(map(printable, told))
        super().__init__("\n".join(self.problems))


def printable(text: str) -> str:
    """On one line, whatever names and values from a file are in it: what a terminal would not show
    as a letter is escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def listed(values: Iterable[object], most: int = 8) -> str:
    """The first `most` values with commas, and how many more there are."""
    items = [str(value) for value in values]
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def some_of(problems: Iterable[str], most: int = 8) -> Iterator[str]:
    """The first `most` problems of one kind, and a line that says how many more there are."""
    rest = 0
    for number, problem in enumerate(problems):
        if number < most:
            yield problem
        else:
            rest += 1
    if rest:
        yield f"… and {rest} more of this kind"
