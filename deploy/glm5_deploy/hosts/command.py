"""Remote commands as typed values that quote themselves, and secrets that never show.

A command is a list of arguments, never a string that somebody pasted together. It has two forms:
`Command.shell`, for the remote shell, and `Command.masked`, for people. Where shell syntax is
needed (a loop, a test, a redirection) the script is a constant of this package and everything
variable reaches it as a positional parameter: see `script`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

MASK = "********"


@dataclass(frozen=True)
class Secret:
    """A value that must not appear in any output, argument list, log or report."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK


def without(secrets: Iterable[Secret], text: str) -> str:
    """A text in which none of these shows."""
    for value in (secret.value for secret in secrets):
        text = text.replace(value, MASK) if value else text
    return text


Argument = str | int | float | PurePath


@dataclass(frozen=True)
class Command:
    """One program with its arguments, run by the login shell of the remote user.

    Secrets cannot be arguments (a remote ``ps`` would show them): they travel on standard input.

    Args:
        argv: program and arguments; numbers and paths are turned into text.
        env: variables for this command alone, set with ``env`` so that no shell assignment is
        needed.
        cwd: folder to run in; the command fails when it does not exist.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs a program")
        for text in (*self.argv, *(part for pair in self.env for part in pair), self.cwd or ""):
            if "\0" in text:
                raise ValueError(
                    f"an argument holds a NUL character, which no program can receive: {text!r}"
                )

    def words(self) -> tuple[str, ...]:
        """The argument list with environment and folder applied by ``env``."""
        if not self.env and self.cwd is None:
            return self.argv
        folder = ("-C", self.cwd) if self.cwd is not None else ()
        assignments = tuple(f"{name}={value}" for name, value in self.env)
        return ("env", *folder, *assignments, *self.argv)

    def shell(self) -> str:
        """Quoted for a POSIX shell: safe for any text without NUL."""
        return shlex.join(self.words())

    def masked(self, limit: int = 200) -> str:
        """For messages and logs: one line; of a script of several lines the arguments alone."""
        words = self.words()
        if words[:2] == ("sh", "-c") and "\n" in words[2].strip():
            words = ("sh", "-c", "…", *words[4:])
        text = " ".join(shlex.join(words).replace("'…'", "…").split())
        return text if len(text) <= limit else f"{text[: limit - 1]}…"


def command(
    program: Argument,
    *arguments: Argument,
    env: Mapping[str, str] | None = None,
    cwd: PurePath | str | None = None,
) -> Command:
    """Build a `Command`, turning paths and numbers into text.

    Raises:
        ValueError: an argument is a `Secret` or holds a NUL character.
    """
    for argument in (program, *arguments):
        if isinstance(argument, Secret):
            raise ValueError(  # noqa: TRY004 one error for every wrong argument
                "a secret cannot be an argument: send it on standard input"
            )
    return Command(
        argv=tuple(str(argument) for argument in (program, *arguments)),
        env=tuple((env or {}).items()),
        cwd=None if cwd is None else str(cwd),
    )


def script(constant: str, *arguments: Argument) -> Command:
    """Run a constant POSIX shell script; `arguments` are its ``$1``, ``$2``, ….

    The script is code of this package, never made from values.
    """
    return command("sh", "-c", constant, "glm5-deploy", *arguments)
