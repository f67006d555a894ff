"""Facts about files and folders of a host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

READ_FILE = r"""
[ -e "$1" ] || exit 44
stat -L -c '%a %U %G' -- "$1" || exit
[ -f "$1" ] || exit 45
od -An -v -tx1 -- "$1"
"""
"""$1 path. Hexadecimal, because a fact's output is text."""

MISSING = 44

LIST_TREE = r"""
[ -d "$1" ] || exit 44
find "$1" -mindepth 1 -maxdepth "$2" -printf '%y %m %s %T@ %u %P\001%l\0'
"""
"""$1 folder, $2 depth."""


@dataclass(frozen=True)
class FileFacts:
    """A file as it is.

    Args:
        content: None where it is missing, is no plain file, or cannot be read.
        mode: permission bits; None where it is missing.
    """

    exists: bool
    content: bytes | None
    mode: int | None
    owner: str | None
    group: str | None


def file_fact(path: PurePosixPath, name: str | None = None) -> Fact[FileFacts]:
    """A file with its content; for small files (what crosses the connection is three times as
    long).

    Args:
        name: the fact's name; default: ``file:PATH``.
    """
    return Fact(name or f"file:{path}", script(READ_FILE, path), parse_file)


def parse_file(output: FactOutput) -> FileFacts:
    """Read what `READ_FILE` prints."""
    head, _, hexadecimal = output.stdout.partition("\n")
    words = head.split()
    if len(words) != 3:
        return FileFacts(output.returncode != MISSING, None, None, None, None)
    content = bytes.fromhex("".join(hexadecimal.split())) if output.ok else None
    return FileFacts(True, content, int(words[0], 8), words[1], words[2])


Kind = Literal["file", "folder", "link", "other"]
KINDS: dict[str, Kind] = {"f": "file", "d": "folder", "l": "link"}


@dataclass(frozen=True)
class TreeEntry:
    """One name in a folder.

    Args:
        path: relative to the folder.
        size: bytes.
        modified: seconds since 1970.
        target: what a link points to, else empty.
    """

    path: PurePosixPath
    kind: Kind
    mode: int
    size: int
    modified: float
    owner: str
    target: str


def tree_fact(
    path: PurePosixPath, depth: int = 1, name: str | None = None
) -> Fact[tuple[TreeEntry, ...] | None]:
    """What lies in a folder, sorted by path; None where there is no such folder.

    Args:
        depth: 1: its direct entries.
        name: the fact's name; default: ``tree:PATH``.
    """
    return Fact(name or f"tree:{path}", script(LIST_TREE, path, depth), parse_tree)


def parse_tree(output: FactOutput) -> tuple[TreeEntry, ...] | None:
    """Read what `LIST_TREE` prints."""
    if output.returncode == MISSING:
        return None
    found = (ENTRY.fullmatch(text) for text in output.stdout.split("\0"))
    return tuple(sorted((_entry(entry) for entry in found if entry), key=lambda entry: entry.path))


ENTRY = re.compile(r"(\w) ([0-7]+) (\d+) ([\d.]+) (\S+) (.+)\x01(.*)", re.DOTALL)


def _entry(found: re.Match[str]) -> TreeEntry:
    kind, mode, size, modified, owner, path, target = found.groups()
    return TreeEntry(
        PurePosixPath(path),
        KINDS.get(kind, "other"),
        int(mode, 8),
        int(size),
        float(modified),
        owner,
        target,
    )
