"""Resolving a lock with uv, as of a day, so that the same recipe gives the same lock."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from glm5_deploy.errors import Glm5Error, UsageError
from glm5_deploy.local_command import LocalCommandError, run
from glm5_deploy.locks.text import Recipe

LIMIT = 900


class ResolveError(Glm5Error):
    """uv found no set of versions that fits."""


def day(text: str) -> str:
    """A day as ``YYYY-MM-DD``.

    Raises:
        UsageError: it is none, or lies in the future.
    """
    try:
        found = datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no day", "write it as 2026-11-25") from error
    if found > datetime.datetime.now(datetime.UTC).date():
        raise UsageError(f"{text} lies in the future: what it will bring is not known")
    return found.isoformat()


def resolve(recipe: Recipe, more: Iterable[str] = ()) -> str:
    """What uv prints: pins and hashes of wheels alone, for one platform and Python.

    Where packages come from is uv's own settings (``UV_INDEX`` and the like).

    Args:
        more: options for uv, such as ``--constraint=FILE``.

    Raises:
        ResolveError: with uv's reasons.
    """
    from uv import find_uv_bin

    options = [
        f"--python-version={recipe.python}",
        f"--python-platform={recipe.platform}",
        f"--exclude-newer={recipe.as_of}",
        "--only-binary=:all:",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--quiet",
        *more,
    ]
    requirements = "".join(f"{line}\n" for line in recipe.requires)
    try:
        return run(
            [find_uv_bin(), "pip", "compile", "-", *options],
            input=requirements.encode(),
            env={"UV_SYSTEM_CERTS": "true", "UV_FIND_LINKS": ""},
            timeout=LIMIT,
        )
    except LocalCommandError as error:
        said = re.sub(r"https?://\S+", "the index", error.message.partition("\n")[2])
        raise ResolveError(
            f"no versions fit {', '.join(recipe.requires)} as of {recipe.as_of}\n{said}".rstrip(),
            _hint(said),
        ) from error


_UNREACHABLE = re.compile(
    r"network was disabled|Failed to fetch|error sending request|dns error|client error|timed out"
)


def _hint(said: str) -> str:
    if _UNREACHABLE.search(said):
        return (
            "no package index was reached: look at the network, at UV_OFFLINE, and at what uv's own"
            " settings name (UV_DEFAULT_INDEX)"
        )
    return "try a later --as-of, or a newer --platform: some wheels need a newer C library"
