"""`SshHost`: the `Host` of real machines, over one SSH connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NoReturn

from glm5_deploy.config.models import Become, Connection
from glm5_deploy.errors import (
    CommandFailedError,
    CommandTimeoutError,
    SudoRefusedError,
    UnreachableError,
)
from glm5_deploy.hosts.become import Handshake, Opening, become, for_any_shell, guarded, refusal
from glm5_deploy.hosts.command import Command, Secret, command, script
from glm5_deploy.hosts.host import Line, Progress, Result, RsyncStats, no_check, no_progress
from glm5_deploy.hosts.lines import LineSplitter, tail
from glm5_deploy.hosts.remedies import known_remedy
from glm5_deploy.hosts.retry import retrying
from glm5_deploy.hosts.ssh_config import Route, resolve

if TYPE_CHECKING:
    import paramiko

    from glm5_deploy.hosts.execution import Execution
    from glm5_deploy.hosts.session import Session

GRACE = 15.0
"""Seconds that the host has to end a command (TERM, then KILL after 5 s) before it is given up
here.
"""

CHANNEL_TIMEOUT = 15.0
"""Seconds for a channel to open: one round trip, so a longer wait means a dead link."""

SESSION_TIMEOUT = 15.0
"""Seconds to wait for a session where sshd has as many as it allows."""

CONNECT_FAILED = 2
"""SSH_OPEN_CONNECT_FAILED of RFC 4254, 5.1; sshd says it for too many sessions too."""

TIMED_OUT = frozenset({124, 137, -1})
"""What ``timeout`` ends with; -1 (no status) where its KILL took itself along."""

PUT = r"""
set -eu
path=$1 mode=$2 owner=$3 size=$4
trap '' PIPE
trap 'exit 143' HUP INT TERM
mkdir -p -- "$(dirname -- "$path")"
new=$(mktemp -- "$(dirname -- "$path")/.glm5-XXXXXXXXXX")
trap 'rm -f -- "$new"' EXIT
cat >"$new"
got=$(stat -c %s -- "$new")
if [ "$got" != "$size" ]; then echo "only $got of $size bytes arrived" >&2; exit 74; fi
[ -z "$owner" ] || chown -- "$owner" "$new"
chmod -- "$mode" "$new"
sync -- "$new"
mv -fT -- "$new" "$path"
trap - EXIT
"""
"""$1 path, $2 mode, $3 owner or empty, $4 size in bytes; the content is standard input.

SIGPIPE is ignored: a connection that broke must not keep the script from removing what it began.
"""


class SshHost:
    """One machine over one SSH connection, opened on first use and reopened when it broke between
    commands.

    Commands may come from several threads, as a lease is renewed while a job is followed; they
    share the connection, and one of them opens it. `close` ends what is in flight.

    Args:
        name: in the inventory.
        connection: where it is; the user's ssh_config gives the rest.
        become: how commands become root.
        sudo_password: gives sudo's password when sudo asks for one.
        passphrase: gives the key file's passphrase when it is needed.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        become: Become,
        *,
        sudo_password: Callable[[], Secret] | None = None,
        passphrase: Callable[[], Secret] | None = None,
    ) -> None:
        self._name = name
        self._connection = connection
        self._become = become
        self._sudo_password = sudo_password
        self._passphrase = passphrase
        self._route: Route | None = None
        self._session: Session | None = None
        self._sftp: tuple[Session, paramiko.SFTPClient] | None = None
        self._round_trips = 0
        self._connecting = threading.Lock()
        self._closing = threading.Event()
        self._closers: list[Callable[[], None]] = []
        self._reached = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def route(self) -> Route:
        """How the host is reached, after ssh_config.

        Raises:
            UsageError: the configuration cannot be used.
        """
        if self._route is None:
            self._route = resolve(self._name, self._connection)
        return self._route

    @property
    def login_user(self) -> str:
        return self.route.user

    @property
    def round_trips(self) -> int:
        return self._round_trips

    # --- commands --------------------------------------------------------------------------------

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
        """See `Host.run`."""
        returncode, stdout, stderr = self._complete(
            command, sudo=sudo, user=user, stdin=stdin, timeout=timeout
        )
        result = Result(command, returncode, _text(stdout), _text(stderr))
        if check and not result.ok:
            raise failure(self._name, result)
        return result

    @contextlib.contextmanager
    def stream(self, command: Command, *, sudo: bool = False) -> Iterator[Iterator[Line]]:
        """See `Host.stream`."""
        execution = self._start(command, sudo=sudo, user=None, stdin=None, timeout=None)
        try:
            yield self._lines(execution)
        finally:
            execution.channel.close()

    def put(
        self,
        content: bytes,
        path: PurePosixPath,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        sudo: bool = True,
    ) -> None:
        """See `Host.put`. The transfer has no limit of its own: a dead link ends it."""
        writer = script(PUT, path, f"{mode:04o}", owner or "", len(content))
        result = self.run(writer, sudo=sudo, stdin=content, timeout=None, check=False)
        if not result.ok:
            said = tail(result.stderr)
            raise CommandFailedError(
                f"{self._name}: cannot write {path}: {said}", known_remedy(said)
            )

    def get(self, path: PurePosixPath, *, sudo: bool = True) -> bytes:
        """See `Host.get`."""
        returncode, stdout, stderr = self._complete(
            command("cat", "--", path), sudo=sudo, user=None, stdin=None, timeout=None
        )
        if returncode != 0:
            raise CommandFailedError(f"{self._name}: cannot read {path}: {tail(_text(stderr))}")
        return stdout

    def size(self, path: PurePosixPath) -> int | None:
        """See `Host.size`."""
        from glm5_deploy.hosts.sftp import size

        return size(self._name, self._sftp_channel(), path)

    def read_at(self, path: PurePosixPath, offset: int, length: int) -> bytes:
        """See `Host.read_at`."""
        from glm5_deploy.hosts.sftp import read_at

        return read_at(self._name, self._sftp_channel(), path, offset, length)

    def _sftp_channel(self) -> paramiko.SFTPClient:
        """One for all reads, as long as the connection lasts."""
        from glm5_deploy.hosts.sftp import start

        self._round_trips += 1
        if self._sftp is None or self._sftp[0] is not self._session or not self._sftp[0].alive:
            session, channel = self._channel("session", None)
            self._sftp = (session, start(self._name, channel))
        return self._sftp[1]

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
        """See `Host.rsync`."""
        from glm5_deploy.hosts.rsync import NO_RSYNC, PREPARE, Transfer, transfer

        self._round_trips += 1
        prepared = self.run(script(PREPARE, target), check=False)
        if prepared.returncode == NO_RSYNC:
            raise CommandFailedError(
                f"{self._name}: rsync is not installed there", "install the package rsync"
            )
        if not prepared.ok:
            said = tail(prepared.stderr)
            raise CommandFailedError(
                f"{self._name}: {self.login_user} cannot make {target}: {said}", known_remedy(said)
            )
        wanted = Transfer(source, target, include=include, delete=delete, checksum=checksum)
        return transfer(
            self._name,
            wanted,
            self.route,
            keepalive=self._connection.keepalive,
            attempts=self._connection.connect_attempts,
            passphrase=self._passphrase,
            progress=progress,
            check=check,
            cancelled=self._closing,
            register=self._register,
        )

    def dial(self, address: str, port: int) -> socket.socket:
        """See `Host.dial`."""
        import paramiko

        self._round_trips += 1
        try:
            _, channel = self._channel("direct-tcpip", (address, port))
        except paramiko.ChannelException as error:
            if error.code == CONNECT_FAILED:
                raise ConnectionRefusedError(
                    f"{self._name}: nothing listens on {address} port {port} ({error.text})"
                ) from error
            raise UnreachableError(
                f"{self._name}: sshd forwards no connection to {address} port {port}: {error.text}",
                "allow it there: AllowTcpForwarding local",
            ) from error
        return channel  # type: ignore[return-value]  # it has what a socket's users need

    def close(self) -> None:
        """See `Host.close`."""
        self._closing.set()
        self._drop(self._session)
        while self._closers:
            with contextlib.suppress(Exception):
                self._closers.pop()()

    def abandon(self) -> None:
        """See `Host.abandon`."""
        if not self._reached:
            self.close()

    # --- how commands are carried out ------------------------------------------------------------

    def _complete(
        self,
        command: Command,
        *,
        sudo: bool,
        user: str | None,
        stdin: bytes | None,
        timeout: float | None,
    ) -> tuple[int, bytes, bytes]:
        execution = self._start(command, sudo=sudo, user=user, stdin=stdin, timeout=timeout)
        stdout, stderr = bytearray(), bytearray()
        begun = _now()
        try:
            for stream, data in execution.chunks():
                (stdout if stream == "stdout" else stderr).extend(data)
        except CommandTimeoutError:
            self._timed_out(command, timeout)
        finally:
            execution.channel.close()
        if timeout is not None and execution.returncode in TIMED_OUT and _now() - begun >= timeout:
            self._timed_out(command, timeout)
        return execution.returncode, bytes(stdout), bytes(stderr)

    def _timed_out(self, command: Command, timeout: float | None) -> NoReturn:
        raise CommandTimeoutError(
            f"{self._name}: still running after {timeout:g} s, ended: {command.masked()}"
        )

    def _start(
        self,
        command: Command,
        *,
        sudo: bool,
        user: str | None,
        stdin: bytes | None,
        timeout: float | None,
    ) -> Execution:
        from glm5_deploy.hosts.execution import Execution

        self._round_trips += 1
        wanted = (user or "root") if sudo or user is not None else None
        opening = self._opening(wanted)
        start = opening.handshake.start if opening else ""
        wrapped = guarded(command, limit=timeout or 0, lifeline=stdin is None, start=start)
        if opening and wanted:
            wrapped = become(wrapped, wanted, opening.handshake)
        session, channel = self._channel("session", None)
        self._exec(session, channel, wrapped)
        who = (self._name, self.route.user, wanted or "root")

        def refused(wrong: bool) -> SudoRefusedError:
            assert opening is not None  # only a command with sudo is refused
            return refusal(*who, opening, wrong=wrong)

        return Execution(
            session,
            channel,
            stdin,
            opening,
            self._sudo_password,
            None if timeout is None else timeout + GRACE,
            refused,
            lambda: self._broken(session, command),
        )

    def _opening(self, wanted: str | None) -> Opening | None:
        """The dialogue with sudo, or None where the login user does it."""
        if wanted is None or wanted == self.login_user:
            return None
        if self._become.method == "none" and wanted == "root":
            return None
        return Opening(Handshake.draw(password=self._sudo_password is not None))

    def _exec(self, session: Session, channel: paramiko.Channel, wrapped: Command) -> None:
        import paramiko

        try:
            channel.settimeout(CHANNEL_TIMEOUT)
            channel.exec_command(for_any_shell(wrapped))
            channel.settimeout(None)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise self._broken(session, wrapped) from error

    def _broken(self, session: Session, command: Command) -> UnreachableError:
        """For a command in flight: it may have been carried out, so it is not repeated."""
        silent = session.silent
        self._drop(session)
        if self._closing.is_set():
            return UnreachableError(f"{self._name}: the connection was closed")
        why = "no answer for a while: the link is dead" if silent else "the connection broke"
        message = f"{self._name}: {why} during: {command.masked(120)}"
        return UnreachableError(message, "run it again: what was done before stays")

    def _lines(self, execution: Execution) -> Iterator[Line]:
        splitters: dict[Literal["stdout", "stderr"], LineSplitter] = {
            "stdout": LineSplitter(),
            "stderr": LineSplitter(),
        }
        for stream, data in execution.chunks():
            for text in splitters[stream].feed(data):
                yield Line(stream, text)
        for stream, splitter in splitters.items():
            for text in splitter.rest():
                yield Line(stream, text)

    # --- the connection --------------------------------------------------------------------------

    def _channel(
        self,
        kind: Literal["session", "direct-tcpip"],
        address: tuple[str, int] | None,
        until: float | None = None,
    ) -> tuple[Session, paramiko.Channel]:
        """Open a channel; gives the session that it belongs to as well. A connection that broke
        while idle is replaced once: nothing has started yet. Where MaxSessions is small, wait for
        another of our commands to end.
        """
        import paramiko

        until = _now() + SESSION_TIMEOUT if until is None else until
        reused = self._session is not None
        session = self._connected()
        try:
            source = ("127.0.0.1", 0) if address else None
            return session, session.transport.open_channel(
                kind, address, source, timeout=CHANNEL_TIMEOUT
            )
        except paramiko.ChannelException as error:
            if kind == "session" and error.code == CONNECT_FAILED and _now() < until:
                # sshd takes a moment to forget a session that has just ended
                self._closing.wait(0.1)
                return self._channel(kind, address, until)
            if kind == "session":
                raise UnreachableError(
                    f"{self._name}: sshd opens no further session: {error.text}",
                    "MaxSessions in its sshd_config may be too low",
                ) from error
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._drop(session)
            if reused and not self._closing.is_set():
                return self._channel(kind, address, until)
            raise UnreachableError(
                f"{self._name}: the connection broke at once: {error or type(error).__name__}"
            ) from error

    def _connected(self) -> Session:
        # `close` takes no lock: it ends the attempt that holds this one.
        with self._connecting:
            if self._closing.is_set():
                raise UnreachableError(f"{self._name}: the connection was closed")
            session = self._session
            if session is None or not session.alive:
                self._drop(session)
                session = self._session = self._open()
                if self._closing.is_set():
                    self._drop(session)
                    raise UnreachableError(f"{self._name}: the connection was closed")
            return session

    def _open(self) -> Session:
        from glm5_deploy.hosts.session import Login, NotRetriedError, open_session

        route = self.route
        login = Login(self._connection.keepalive, self._passphrase, self._register)

        def attempt() -> Session:
            self._closers.clear()
            return open_session(route, login)

        session = retrying(
            attempt,
            attempts=self._connection.connect_attempts,
            transient=lambda error: (
                isinstance(error, UnreachableError) and not isinstance(error, NotRetriedError)
            ),
            cancelled=self._closing,
        )
        self._reached = True
        return session

    def _register(self, close: Callable[[], None]) -> None:
        """Remember what `close` has to end; where it was called already, end it now."""
        self._closers.append(close)
        if self._closing.is_set():
            with contextlib.suppress(Exception):
                close()

    def _drop(self, session: Session | None) -> None:
        """End a session, and forget it where no newer one has taken its place."""
        if session is None:
            return
        if self._session is session:
            self._session = None
        session.close()


def _now() -> float:
    import time

    return time.monotonic()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def failure(host: str, result: Result) -> CommandFailedError:
    """The error for a status that was not asked for."""
    status = (
        f"was ended by signal {result.returncode - 128}"
        if 128 < result.returncode < 160
        else f"ended with status {result.returncode}"
    )
    said = tail(result.stderr or result.stdout)
    message = f"{host}: {result.command.masked()} {status}: {said}"
    return CommandFailedError(message, known_remedy(said))
