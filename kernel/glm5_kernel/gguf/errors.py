"""What is wrong with a file, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable


class GgufError(ValueError):
    """A GGUF file, or a split of several, that cannot be used.

    Attributes:
        problems: one sentence each, with the file's name; never empty.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


def listed(values: Iterable[object], most: int = 8) -> str:
    """The first `most` values with commas, and how many more there are."""
    items = [str(value) for value in values]
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")
