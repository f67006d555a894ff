"""One GET /health through the host: the cheap question of a run that finds nothing to change."""

from __future__ import annotations

import io
import socket
from typing import cast

from glm5_deploy.config.address import dial_address
from glm5_deploy.hosts.host import Host


def health(host: Host, address: str, port: int, timeout: float = 5.0) -> int | None:
    """The HTTP status of ``GET /health``, or None where nothing answers.

    Args:
        timeout: seconds that each read may take.

    Raises:
        UnreachableError: there is no session to the host at all.
    """
    from http.client import HTTPException

    try:
        stream = host.dial(dial_address(address), port)
    except OSError:
        return None
    try:
        stream.settimeout(timeout)
        return _ask(stream, f"{address}:{port}")
    except (OSError, HTTPException):
        return None
    finally:
        stream.close()


def _ask(stream: socket.socket, name: str) -> int:
    from http.client import HTTPResponse

    request = f"GET /health HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
    stream.sendall(request.encode("ascii"))
    response = HTTPResponse(cast(socket.socket, _Readable(stream)), method="GET")
    response.begin()
    return response.status


class _Readable:
    """Gives a channel the one method that `HTTPResponse` wants of a socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._stream))


class _Raw(io.RawIOBase):
    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)
