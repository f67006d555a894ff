"""Programs on this machine, run without a shell, with errors that show what they said."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from glm5_deploy.errors import Glm5Error

Word = str | Path


class LocalCommandError(Glm5Error):
    """A program on this machine failed."""


def run(
    argv: Sequence[Word],
    *,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> str:
    """Run to the end and return stdout as text.

    Args:
        env: variables added to this process's own.

    Raises:
        LocalCommandError: not installed, a status other than 0 (with the end of what it said), or
            still running after ``timeout`` seconds.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=b"" if input is None else input,
            capture_output=True,
            env={**os.environ, **(env or {})},
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise LocalCommandError(f"{words[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise LocalCommandError(f"{shlex.join(words)[:200]}: no end after {timeout} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        tail = "\n".join(said.splitlines()[-15:])
        raise LocalCommandError(f"{shlex.join(words)[:200]}: status {done.returncode}\n{tail}")
    return done.stdout.decode(errors="replace")


def succeeds(argv: Sequence[Word]) -> bool:
    """Whether the program ends with status 0."""
    try:
        run(argv)
    except LocalCommandError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out until the end of the block; they wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
