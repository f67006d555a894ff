"""Programs that run on the host, sent there as files: standard library and POSIX shell only.

Nothing here imports the rest of the package. Values reach these programs as arguments or on
standard input.
"""

from __future__ import annotations

from importlib.resources import files


def program(name: str) -> bytes:
    """The text of one of these programs."""
    return (files(__name__) / name).read_bytes()
