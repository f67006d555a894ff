"""A scripted host for tests: commands that are expected, and what they answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from glm5_deploy.errors import CommandFailedError, Glm5Error
from glm5_deploy.hosts.command import Command
from glm5_deploy.hosts.host import Line, Progress, Result, RsyncStats, no_check, no_progress
from glm5_deploy.hosts.ssh import failure

Kind = Literal["run", "stream", "put", "get", "rsync", "dial"]


@dataclass(frozen=True)
class Call:
    """One thing that was done to the host.

    Args:
        command: for run and stream.
        path: for put, get and rsync.
        content: what was written, or given as standard input.
        sudo: as root, or as `user`.
    """

    kind: Kind
    command: Command | None = None
    path: PurePosixPath | None = None
    content: bytes | None = None
    sudo: bool = False
    user: str | None = None
    mode: int | None = None
    owner: str | None = None
    source: Path | None = None


@dataclass(frozen=True)
class Expected:
    """A command that the test foresees.

    Args:
        matches: the command itself, its program's name, or a test of it.
        raises: an error instead of a result.
        lines: what a stream yields; default: the lines of stdout.
        times: how often it may come; None: any number of times.
    """

    matches: Command | str | Callable[[Command], bool]
    stdout: str = ""
    stderr: str = ""
    returncode: int = 0
    raises: Exception | None = None
    lines: tuple[Line, ...] | None = None
    times: int | None = 1

    def fits(self, command: Command) -> bool:
        if isinstance(self.matches, Command):
            return self.matches == command
        if isinstance(self.matches, str):
            return command.argv[0] == self.matches
        return self.matches(command)

    def output(self) -> tuple[Line, ...]:
        if self.lines is not None:
            return self.lines
        return tuple(Line("stdout", text) for text in self.stdout.splitlines())


@dataclass
class FakeHost:
    """A `Host` without a machine. A command nobody expects fails the test and names what is left.

    Args:
        expected: answers; the first that fits and is not used up is taken, so their order is free.
        files: what `get` reads and `put` writes.
        dials: address and port → what `dial` gives; anything else is refused.
    """

    name: str = "node1"
    login_user: str = "root"
    expected: list[Expected] = field(default_factory=list)
    files: dict[PurePosixPath, bytes] = field(default_factory=dict)
    dials: dict[tuple[str, int], Callable[[], socket.socket]] = field(default_factory=dict)
    rsync_stats: RsyncStats = field(default_factory=lambda: RsyncStats(0, 0))
    calls: list[Call] = field(default_factory=list)
    closed: bool = False
    _used: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def round_trips(self) -> int:
        return len(self.calls)

    @property
    def commands(self) -> list[Command]:
        """Those run and streamed, in order."""
        return [call.command for call in self.calls if call.command is not None]

    def run(
        self,
        command: Command,
        *,
        sudo: bool = False,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = 120.0,  # noqa: ARG002 the protocol's
        check: bool = True,
    ) -> Result:
        """See `Host.run`."""
        self.calls.append(Call("run", command, content=stdin, sudo=sudo, user=user))
        answer = self._answer(command)
        result = Result(command, answer.returncode, answer.stdout, answer.stderr)
        if check and not result.ok:
            raise failure(self.name, result)
        return result

    @contextlib.contextmanager
    def stream(self, command: Command, *, sudo: bool = False) -> Iterator[Iterator[Line]]:
        """See `Host.stream`."""
        self.calls.append(Call("stream", command, sudo=sudo))
        yield iter(self._answer(command).output())

    def put(
        self,
        content: bytes,
        path: PurePosixPath,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        sudo: bool = True,
    ) -> None:
        """See `Host.put`."""
        self.calls.append(
            Call("put", path=path, content=content, sudo=sudo, mode=mode, owner=owner)
        )
        self.files[path] = content

    def get(self, path: PurePosixPath, *, sudo: bool = True) -> bytes:
        """See `Host.get`."""
        self.calls.append(Call("get", path=path, sudo=sudo))
        if path not in self.files:
            raise CommandFailedError(f"{self.name}: cannot read {path}: No such file or directory")
        return self.files[path]

    def size(self, path: PurePosixPath) -> int | None:
        """See `Host.size`."""
        self.calls.append(Call("get", path=path))
        return len(self.files[path]) if path in self.files else None

    def read_at(self, path: PurePosixPath, offset: int, length: int) -> bytes:
        """See `Host.read_at`."""
        self.calls.append(Call("get", path=path))
        if path not in self.files:
            raise CommandFailedError(f"{self.name}: cannot read {path}: No such file")
        return self.files[path][offset : offset + length]

    def rsync(
        self,
        source: Path,
        target: PurePosixPath,
        *,
        include: tuple[str, ...] = (),  # noqa: ARG002 the protocol's
        delete: bool = False,  # noqa: ARG002
        checksum: bool = False,  # noqa: ARG002
        progress: Progress = no_progress,
        check: Callable[[], None] = no_check,
    ) -> RsyncStats:
        """See `Host.rsync`."""
        self.calls.append(Call("rsync", path=target, source=source))
        check()
        progress("", 1.0)
        return self.rsync_stats

    def dial(self, address: str, port: int) -> socket.socket:
        """See `Host.dial`."""
        self.calls.append(Call("dial"))
        maker = self.dials.get((address, port))
        if maker is None:
            raise ConnectionRefusedError(f"{self.name}: nothing listens on {address} port {port}")
        return maker()

    def abandon(self) -> None:
        """See `Host.abandon`."""

    def close(self) -> None:
        """See `Host.close`."""
        self.closed = True

    def assert_all_used(self) -> None:
        """Fail where an expected command never came."""
        left = [answer for number, answer in enumerate(self.expected) if not self._used.get(number)]
        if left:
            raise AssertionError(f"{self.name}: expected but never run: {_listing(left)}")

    def _answer(self, command: Command) -> Expected:
        for number, answer in enumerate(self.expected):
            used = self._used.get(number, 0)
            if (answer.times is None or used < answer.times) and answer.fits(command):
                self._used[number] = used + 1
                if isinstance(answer.raises, Exception):
                    raise answer.raises
                return answer
        left = [
            answer
            for number, answer in enumerate(self.expected)
            if answer.times is None or self._used.get(number, 0) < answer.times
        ]
        raise AssertionError(
            f"{self.name}: nobody expects {command.masked()}; left are: {_listing(left)}"
        )


def _listing(answers: list[Expected]) -> str:
    def name(answer: Expected) -> str:
        wanted = answer.matches
        return wanted.masked() if isinstance(wanted, Command) else str(wanted)

    return "; ".join(name(answer) for answer in answers) or "none"


def unreachable(error: Glm5Error, name: str = "node1") -> FakeHost:
    """A host whose every command raises the error."""
    return FakeHost(name, expected=[Expected(lambda command: True, raises=error, times=None)])  # noqa: ARG005
