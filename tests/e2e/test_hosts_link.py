"""Connections that break."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts import session
from glm5_deploy.hosts.command import command, script
from glm5_deploy.hosts.ssh_config import Route

from tests.e2e.hosts_support import eventually, opened, processes

QUICK = {"keepalive": 1, "connect_timeout": 1, "connect_attempts": 1}


@pytest.fixture
def node(bed: Bed) -> Iterator[BedHost]:
    host = bed.hosts["node1"]
    yield host
    host.restore()
    host.exec(["pkill", "-x", "sleep"], check=False)


def test_a_host_that_is_cut_off_is_told(bed: Bed, node: BedHost) -> None:
    node.cut()
    with (
        opened(bed, **QUICK) as host,
        pytest.raises(UnreachableError, match=r"no answer|[Nn]o route"),
    ):
        host.run(command("true"))


def test_a_dead_link_ends_a_silent_command(bed: Bed, node: BedHost) -> None:
    with opened(bed, **QUICK) as host, host.stream(script("echo go; sleep 631")) as lines:
        assert next(lines).text == "go"
        node.cut()
        with pytest.raises(UnreachableError, match=r"during: .*sleep 631"):
            next(lines)


def test_a_dead_link_behind_a_jump_is_noticed(bed: Bed, node: BedHost) -> None:
    """The kernel sees the jump host alive; only unanswered keepalives tell."""
    jump = f"root@{bed.hosts['node2'].address}"
    with (
        opened(bed, proxy_jump=jump, **QUICK) as host,
        host.stream(script("echo go; sleep 632")) as lines,
    ):
        assert next(lines).text == "go"
        node.cut()
        with pytest.raises(UnreachableError, match="link is dead"):
            next(lines)


def test_a_silent_command_on_a_live_link_is_left_alone(bed: Bed) -> None:
    with opened(bed, **QUICK) as host:
        assert host.run(script("sleep 6; echo done")).stdout == "done\n"


def test_a_dead_link_ends_an_upload(bed: Bed, node: BedHost) -> None:
    with opened(bed, **QUICK) as host:
        host.run(command("true"))
        node.cut()
        with pytest.raises(UnreachableError):
            host.put(b"x" * 20_000_000, PurePosixPath("/tmp/hosts-cut"))


def test_a_connection_that_broke_while_idle_is_opened_again(bed: Bed, node: BedHost) -> None:
    with opened(bed) as host:
        host.run(command("true"))
        node.exec(["pkill", "-f", "sshd: root@notty"])
        assert host.run(command("echo", "again")).stdout == "again\n"


def test_a_command_in_flight_is_not_repeated(bed: Bed, node: BedHost) -> None:
    node.exec(["rm", "-f", "/tmp/hosts-count"])
    with opened(bed) as host, host.stream(script("echo x >>/tmp/hosts-count; sleep 633")) as lines:
        assert eventually(lambda: bool(processes(node, "sleep 633")))
        node.exec(["pkill", "-f", "sshd: root@notty"])
        with pytest.raises(UnreachableError, match="the connection broke"):
            next(lines)
    assert node.exec(["cat", "/tmp/hosts-count"]).stdout == "x\n"
    assert eventually(lambda: not processes(node, "sleep 633"))


def test_a_host_that_comes_back_is_waited_for(bed: Bed, node: BedHost) -> None:
    node.cut()
    back = threading.Timer(2.0, node.restore)
    back.start()
    settings = {"connect_timeout": 1, "connect_attempts": 8}
    with opened(bed, **settings) as host:
        assert host.run(command("echo", "here")).stdout == "here\n"
    back.join()


def test_close_ends_the_attempts_to_connect(
    bed: Bed, node: BedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Route] = []
    original = session.open_session

    def counted(route: Route, login: session.Login) -> session.Session:
        attempts.append(route)
        return original(route, login)

    monkeypatch.setattr(session, "open_session", counted)
    node.cut()
    with opened(bed, connect_timeout=1, connect_attempts=10) as host:
        threading.Timer(1.5, host.close).start()
        with pytest.raises(UnreachableError):
            host.run(command("true"))
    assert 1 <= len(attempts) < 10
