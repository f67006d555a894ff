"""The parts below the checks: events, backends, addresses, health, transport."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest
from glm5_deploy.config.address import dial_address
from glm5_deploy.config.models import Target
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts.host import Host
from glm5_deploy.smoke import sse
from glm5_deploy.smoke.api import Streamed
from glm5_deploy.smoke.backend import Backends, matches, parse_backends
from glm5_deploy.smoke.checks import measured_rate
from glm5_deploy.smoke.health import health
from glm5_deploy.smoke.transport import client_over
from hypothesis import given
from hypothesis import strategies as st


def local_dial(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), timeout=10.0)


LINES = (
    'data: {"text": "ünï"}', "", ": a comment", "", "event: x", "data: first", "data:second\r",
    "\r", "data: [DONE]", "", "",
)  # fmt: skip
STREAM = "\n".join(LINES)
EVENTS = ['{"text": "ünï"}', "first\nsecond", "[DONE]"]


@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=8))
def test_events_do_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    raw = STREAM.encode()
    edges = [0, *sorted(cuts), len(raw)]
    chunks = [raw[a:b] for a, b in itertools.pairwise(edges)]
    assert list(sse.events(chunks)) == EVENTS


def test_an_unfinished_event_is_none() -> None:
    assert list(sse.events([b"data: half"])) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "(EngineCore pid=1) INFO [cuda.py:507] Using FLASH_ATTN_MLA attention backend out of "
            "potential backends: ['FLASH_ATTN_MLA'].",
            Backends(("FLASH_ATTN_MLA",)),
        ),
        ("INFO [cuda.py:446] Using AttentionBackendEnum.CUSTOM backend.", Backends(("CUSTOM",))),
        ("INFO [cpu.py:175] Using CPU_MLA backend.", Backends(("CPU_MLA",))),
        ("INFO [selector.py:106] Using FLASH_ATTN MLA prefill backend.", Backends()),
        ("INFO [cuda.py:541] Using backend AttentionBackendEnum.FLASH_ATTN for vit", Backends()),
        ("INFO Using 'MARLIN' WNA16 MoE backend.", Backends()),
        (
            "glm5_kernel: attention=triton_sparse kv=fp8_ds_mla indexer=triton",
            Backends((), (("triton_sparse", "fp8_ds_mla", "triton"),)),
        ),
    ],
)
def test_backend_lines(line: str, expected: Backends) -> None:
    assert parse_backends([line, line]) == expected


@pytest.mark.parametrize(
    ("expected", "found", "result"),
    [
        ("flashmla", Backends(("FLASHMLA",)), True),
        ("AttentionBackendEnum.CUSTOM", Backends(("CUSTOM",)), True),
        ("FLASHMLA", Backends(("FLASHMLA", "TRITON_MLA")), False),
        ("FLASHMLA", Backends(), False),
        ("GLM5", Backends(("CUSTOM",), (("glm5", "a", "b"),)), True),
        ("CUSTOM", Backends(("CUSTOM",), (("glm5", "a", "b"),)), True),
        ("GLM5", Backends((), (("glm5", "a", "b"), ("stock", "a", "b"))), False),
    ],
)
def test_matches(expected: str, found: Backends, result: bool) -> None:
    assert matches(expected, found) is result


@pytest.mark.parametrize(
    ("stamps", "tokens", "total", "expected"),
    [
        # One token each 10 ms after 0.5 s: 100 a second.
        (tuple(0.5 + i / 100 for i in range(64)), 64, 1.2, (100.0, "after the first")),
        # The same where the first five waited for each other, and where two tokens share a chunk.
        ((0.54,) * 5 + tuple(0.55 + i / 100 for i in range(59)), 64, 1.2,
         (100.0, "after the first")),
        (tuple(0.5 + i / 100 for i in range(32)), 64, 1.2, (200.0, "after the first")),
        # All at once: only the whole request says something.
        (tuple(2.0 + i * 1e-5 for i in range(64)), 64, 2.0, (32.0, "over the whole request")),
        ((0.7, 0.7 + 1e-7), 2, 1.0, (2.0, "over the whole request")),
        ((0.2, 0.4, 0.6), 3, 0.6, (5.0, "over the whole request")),
    ],
)  # fmt: skip
def test_rate(
    stamps: tuple[float, ...], tokens: int, total: float, expected: tuple[float, str]
) -> None:
    rate, span = measured_rate(Streamed("x", stamps, tokens, total))
    assert rate == pytest.approx(expected[0])
    assert span == expected[1]


@pytest.mark.parametrize(
    ("bind", "dialled"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("[::]", "::1"),
        ("", "127.0.0.1"),
        ("10.0.0.5", "10.0.0.5"),
        ("[fd00::1]", "fd00::1"),
    ],
)
def test_dial_address(bind: str, dialled: str) -> None:
    assert dial_address(bind) == dialled


@pytest.mark.parametrize(
    ("fault", "status"), [("none", 200), ("unhealthy", 503), ("hang-health", None)]
)
def test_health(
    fault: str, status: int | None, serve: Callable[..., Target], local_host: type[Any]
) -> None:
    port = serve("--fault", fault).profile.serve.port
    assert health(local_host(), "0.0.0.0", port, timeout=1.0) == status


def test_health_of_nobody(local_host: type[Any]) -> None:
    assert health(local_host(), "127.0.0.1", 9) is None


def test_health_of_something_else(local_host: type[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert health(local_host(), "127.0.0.1", listener.getsockname()[1], 2.0) is None


def test_a_lost_session_is_raised_not_hidden() -> None:
    class Gone:
        def dial(self, address: str, port: int) -> socket.socket:  # noqa: ARG002
            raise UnreachableError("gone")

    with pytest.raises(UnreachableError):
        health(cast(Host, Gone()), "127.0.0.1", 1)
    with client_over(Gone().dial, "127.0.0.1", 1) as client, pytest.raises(UnreachableError):
        client.get("/health")


def test_proxies_of_the_environment_play_no_part(
    serve: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    target = serve()
    with client_over(local_dial, "127.0.0.1", target.profile.serve.port) as client:
        assert client.get("/health").status_code == 200


def test_errors_are_those_of_httpx() -> None:
    with client_over(local_dial, "127.0.0.1", 9) as client, pytest.raises(httpx.ConnectError):
        client.get("/health")
