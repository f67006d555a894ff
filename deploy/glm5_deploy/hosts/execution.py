"""One command on one channel: input, both outputs, sudo's questions and the limit, in one loop."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import paramiko

from glm5_deploy.errors import CommandTimeoutError, SudoRefusedError, UnreachableError
from glm5_deploy.hosts.become import Opening
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.session import Session

CHUNK = 1 << 17
SLICE = 0.5
"""Seconds between looks at the link and the limit while nothing comes."""

AFTER_EXIT = 2.0
"""A daemon may hold the outputs open: so long after the exit without data the command counts as
done.
"""

Chunk = tuple[Literal["stdout", "stderr"], bytes]


@dataclass
class Execution:
    """A command that was started on a channel.

    Args:
        stdin: sent as soon as the command itself runs; None leaves the channel open as the
            command's lifeline.
        opening: the dialogue with sudo, where there is one.
        password: resolved when sudo asks, not before.
        limit: seconds from now; None: for ever.
        refused: makes the error for a command that never began; its argument: the password was
            rejected.
        broken: makes the error for a connection that broke.
    """

    session: Session
    channel: paramiko.Channel
    stdin: bytes | None
    opening: Opening | None
    password: Callable[[], Secret] | None
    limit: float | None
    refused: Callable[[bool], SudoRefusedError]
    broken: Callable[[], UnreachableError]
    returncode: int = -1
    _sender: threading.Thread | None = field(default=None, repr=False)

    def chunks(self) -> Iterator[Chunk]:
        """Output as it comes, until the command has ended; then `returncode` is set.

        Raises:
            CommandTimeoutError: without text, for the caller to word.
            SudoRefusedError: it never began.
            UnreachableError: the connection broke.
        """
        deadline = None if self.limit is None else time.monotonic() + self.limit
        poller = select.poll()
        poller.register(self.channel.fileno(), select.POLLIN)
        if self.opening is None:
            self._send()
        last = time.monotonic()
        while True:
            got = False
            for chunk in self._ready():
                got = True
                yield chunk
            now = time.monotonic()
            if got:
                last = now
                continue
            if self._ended(now - last):
                break
            self._check(now, last, deadline)
            if self.channel.eof_received:
                self.channel.status_event.wait(SLICE)
            else:
                poller.poll(SLICE * 1000)
        self._finish()

    def _ready(self) -> Iterator[Chunk]:
        while self.channel.recv_stderr_ready():
            data = self.channel.recv_stderr(CHUNK)
            if self.opening is not None and not self.opening.started:
                data = self._answer(self.opening, data)
            if data:
                yield "stderr", data
        while self.channel.recv_ready():
            data = self.channel.recv(CHUNK)
            if data:
                yield "stdout", data

    def _answer(self, opening: Opening, data: bytes) -> bytes:
        """Take part in sudo's dialogue; what comes back is the command's own output."""
        step = opening.feed(data)
        if step == "password" and self.password is not None:
            self.channel.sendall(f"{self.password().value}\n".encode())
        elif step == "wrong":
            raise self.refused(True)
        elif step == "started":
            self._send()
            return opening.said
        return b""

    def _send(self) -> None:
        if self.stdin is None:
            return
        self._sender = threading.Thread(target=self._feed, args=(self.stdin,), daemon=True)
        self._sender.start()

    def _feed(self, content: bytes) -> None:
        # a command may end, or close its input, before it has read everything
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            view = memoryview(content)
            while view:
                view = view[self.channel.send(bytes(view[:CHUNK])) :]
            self.channel.shutdown_write()

    def _ended(self, idle: float) -> bool:
        channel = self.channel
        if channel.recv_ready() or channel.recv_stderr_ready():
            return False
        if channel.closed:
            return True
        if not channel.exit_status_ready():
            return False
        return bool(channel.eof_received) or idle > AFTER_EXIT

    def _check(self, now: float, last: float, deadline: float | None) -> None:
        if now - last > self.session.keepalive:
            self.session.watch()
        if not self.session.alive:
            raise self.broken()
        if deadline is not None and now > deadline:
            raise CommandTimeoutError("")

    def _finish(self) -> None:
        status = self.channel.exit_status if self.channel.exit_status_ready() else -1
        if status == -1 and self.session.ends_within(AFTER_EXIT):
            raise self.broken()
        if self.opening is not None and not self.opening.started:
            raise self.refused(False)
        self.returncode = status
