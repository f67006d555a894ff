"""Everything that is wrong with the configuration, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.errors import UsageError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake.

    Args:
        file: where it is, None where it came from the command line.
        line, column: counted from 1.
        key_path: such as ``hosts.bw1.connection.port``; empty where there is none.
        message: what is wrong and what is allowed.
        hint: what to write instead.
    """

    file: Path | None
    line: int | None
    column: int | None
    key_path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        place = [] if self.file is None else [shown_file(self.file)]
        place += [str(number) for number in (self.line, self.column) if number is not None]
        parts = [":".join(place), self.key_path, self.message]
        text = ": ".join(part for part in parts if part)
        return text if self.hint is None else f"{text}\n    {self.hint}"

    def _order(self) -> tuple[str, int, int, str]:
        return (str(self.file or ""), self.line or 0, self.column or 0, self.message)


class ConfigErrors(UsageError):  # noqa: N818  # it holds many
    """All problems of all files at once, sorted by file and line; each is said once."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=ConfigProblem._order))
        text = "\n".join(str(problem) for problem in self.problems)
        count = len(self.problems)
        super().__init__(text if count == 1 else f"{count} mistakes in the configuration\n{text}")


def elsewhere(
    problems: Iterable[ConfigProblem], said: Iterable[ConfigProblem]
) -> list[ConfigProblem]:
    """Those that are not at a place where something else was found wrong first."""
    places = {(problem.file, problem.line, problem.column) for problem in said}
    return [p for p in problems if p.line is None or (p.file, p.line, p.column) not in places]


def shown_file(file: Path) -> str:
    """Relative to the current folder where it lies below it: what a terminal makes a link of."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def shown_path(path: KeyPath) -> str:
    """``("groups", "gpu", "hosts", 0)`` as ``groups.gpu.hosts[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part and part.isprintable() and " " not in part else repr(part)
            text += f".{name}" if text else name
    return text
