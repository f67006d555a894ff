"""An HTTP client whose connections go through a host's SSH session."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpcore
import httpx

from glm5_deploy.config.address import bracketed, dial_address
from glm5_deploy.config.models import Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host

Dial = Callable[[str, int], socket.socket]
"""Opens a byte stream to an address and port, as `Host.dial` does."""

DEFAULT_TIMEOUT = httpx.Timeout(60.0, connect=15.0)


def client_for(host: Host, target: Target, api_key: Secret | None) -> httpx.Client:
    """A client of the target's server, through ``host``: ``client.get("/health")``."""
    serve = target.profile.serve
    return client_over(host.dial, serve.host, serve.port, api_key)


def client_over(dial: Dial, bind: str, port: int, api_key: Secret | None = None) -> httpx.Client:
    """A client over any `Dial`; this machine's proxies and netrc play no part."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.value}"}
    return httpx.Client(
        base_url=f"http://{bracketed(dial_address(bind))}:{port}",
        transport=ChannelTransport(dial),
        headers=headers,
        timeout=DEFAULT_TIMEOUT,
        trust_env=False,
    )


class ChannelStream(httpcore.NetworkStream):
    """One connection; errors become httpcore's."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._channel.settimeout(timeout)
            return self._channel.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except (OSError, EOFError) as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._channel.settimeout(timeout)
            self._channel.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except (OSError, EOFError) as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._channel.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,  # noqa: ARG002
        server_hostname: str | None = None,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        raise httpcore.UnsupportedProtocol("no TLS inside the SSH channel")

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401, ARG002
        return None


class ChannelBackend(httpcore.NetworkBackend):
    """Connects through a `Dial`."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        try:
            return ChannelStream(self._dial(host, port))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from error
        except (OSError, EOFError) as error:
            raise httpcore.ConnectError(str(error) or "connection refused") from error


class ChannelTransport(httpx.BaseTransport):
    """Every request opens its own channel: an idle one may be closed by either end unseen."""

    def __init__(self, dial: Dial) -> None:
        self._pool = httpcore.ConnectionPool(
            network_backend=ChannelBackend(dial), max_connections=512, max_keepalive_connections=0
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        core = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=cast(Iterable[bytes], request.stream),
            extensions=request.extensions,
        )
        with _as_httpx_errors():
            answer = self._pool.handle_request(core)
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(cast(Iterable[bytes], answer.stream)),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx_errors():
            yield from self._parts

    def close(self) -> None:
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()


_ERRORS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
)


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    """httpcore's errors under httpx's names."""
    try:
        yield
    except Exception as error:
        for core, public in _ERRORS:
            if isinstance(error, core):
                raise public(str(error)) from error
        raise
