"""Locks: hashed requirement sets, shipped with the program or given as files."""

from __future__ import annotations

import difflib
from pathlib import Path

from glm5_deploy.config.resources import resource_dir
from glm5_deploy.errors import UsageError

_SUFFIXES = (".txt", ".lock")


def lock_path(name: str, base: Path = Path()) -> Path:
    """The file of a lock.

    Args:
        name: a path relative to ``base``, or the name of one that ships, suffix or not.

    Raises:
        UsageError: there is none; the nearest name that ships is in the hint.
    """
    found = local_lock(name, base) or _shipped(name)
    if found is None:
        raise UsageError(*missing_lock(name))
    return found


def local_lock(name: str, base: Path) -> Path | None:
    """A lock by its path, absolute, or None."""
    path = base / Path(name).expanduser()
    return path.absolute() if path.is_file() else None


def missing_lock(name: str) -> tuple[str, str]:
    """What to say about a lock that is not there: message and hint."""
    known = lock_names()
    near = difflib.get_close_matches(name, known, 1)
    shipped = f"locks that ship with the program: {', '.join(known) or 'none'}"
    hint = f"did you mean `{near[0]}`?" if near else shipped
    return f"no lock is called `{name}`, and no such file is there", hint


def lock_names() -> list[str]:
    """Names of the locks that ship with the program."""
    files = resource_dir("locks").glob("*")
    return sorted({file.stem for file in files if file.suffix in _SUFFIXES})


def _shipped(name: str) -> Path | None:
    if "/" in name:
        return None
    folder = resource_dir("locks")
    candidates = (folder / name, *(folder / f"{name}{suffix}" for suffix in _SUFFIXES))
    return next((file for file in candidates if file.is_file()), None)
