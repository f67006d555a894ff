"""What the rest of the program may do to a host. Nothing else knows SSH."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from glm5_deploy.hosts.command import Command


@dataclass(frozen=True)
class Result:
    """What a finished command left: text is decoded as UTF-8, with undecodable bytes replaced."""

    command: Command
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


@dataclass(frozen=True)
class Line:
    """One line of a running command's output, without its newline."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class RsyncStats:
    """What a transfer did.

    Args:
        files: files transferred or changed.
        bytes_sent: bytes that crossed the connection.
    """

    files: int
    bytes_sent: int


Progress = Callable[[str, float | None], None]
"""Called with a short text and, where it is known, the fraction done (0 to 1)."""


def no_check() -> None:
    """Go on."""


def no_progress(text: str, fraction: float | None) -> None:
    """A `Progress` for callers that show none."""


class Host(Protocol):
    """One machine over one connection that is opened on first use and reopened when it broke.

    Every method raises `UnreachableError` where there is no session to be had, and
    `SudoRefusedError` where ``sudo=True`` and sudo is missing, refuses, or wants a password that
    was not given.
    """

    @property
    def name(self) -> str:
        """The host's name in the inventory."""

    @property
    def login_user(self) -> str:
        """The user that the connection is made as (after ssh_config)."""

    @property
    def round_trips(self) -> int:
        """Commands, transfers and channels so far: what a benchmark counts."""

    def run(
        self,
        command: Command,
        *,
        sudo: bool = False,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = 120.0,
        check: bool = True,
    ) -> Result:
        """Run to the end.

        Args:
            sudo: as root (nothing is added where the login user is root already).
            user: as this user instead of root; implies ``sudo``.
            stdin: what the command reads; secrets travel here.
            timeout: seconds; None waits for ever.
            check: raise on a status other than 0.

        Raises:
            CommandFailedError: with the masked command, its status and the end of its stderr.
            CommandTimeoutError: it was still running at the limit; it was ended on the host.
        """

    def stream(
        self, command: Command, *, sudo: bool = False
    ) -> AbstractContextManager[Iterator[Line]]:
        """Yield output line by line while it runs; leaving the context ends it on the host too."""

    def put(
        self,
        content: bytes,
        path: PurePosixPath,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        sudo: bool = True,
    ) -> None:
        """Write a file atomically: beside its place with its final mode, flushed, then renamed.
        Folders are made.
        """

    def get(self, path: PurePosixPath, *, sudo: bool = True) -> bytes:
        """Read a file.

        Raises:
            CommandFailedError: it is not there or not readable.
        """

    def size(self, path: PurePosixPath) -> int | None:
        """Bytes of a file, over SFTP as the login user; None where there is none.

        Raises:
            CommandFailedError: it cannot be looked at, or the host has no SFTP.
        """

    def read_at(self, path: PurePosixPath, offset: int, length: int) -> bytes:
        """A part of a file, over SFTP as the login user; fewer bytes only at its end.

        Raises:
            CommandFailedError: it cannot be read, or the host has no SFTP.
        """

    def rsync(
        self,
        source: Path,
        target: PurePosixPath,
        *,
        include: tuple[str, ...] = (),
        delete: bool = False,
        checksum: bool = False,
        progress: Progress = no_progress,
        check: Callable[[], None] = no_check,
    ) -> RsyncStats:
        """Copy a folder's contents (or one file) into ``target`` as the login user, resumable, over
        the same connection settings.

        Args:
            include: names relative to source; empty means everything.
            delete: remove what source lacks.
            checksum: compare contents, not size and time.
            check: called at least every half second; what it raises ends the transfer.

        Links that lead out of ``source`` are followed: a model in a download cache is made of them.

        Raises:
            CommandFailedError: rsync's own message.
        """

    def dial(self, address: str, port: int) -> socket.socket:
        """A byte stream from the host to ``address:port``, through the SSH connection
        (``direct-tcpip``).

        What comes back has ``recv``, ``sendall``, ``settimeout`` and ``close`` as a socket has.

        Raises:
            ConnectionRefusedError: nothing listens there.
        """

    def abandon(self) -> None:
        """Close it where no session was ever had: an attempt to connect ends at once."""

    def close(self) -> None:
        """End the session; safe to call twice."""
