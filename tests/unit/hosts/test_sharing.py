"""One connection, several threads: a lease is renewed while a job is followed."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from glm5_deploy.config.models import Become, Connection
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts import session as sessions
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.execution import Execution
from glm5_deploy.hosts.ssh import SshHost


@dataclass
class Link:
    """Stands for a session."""

    alive: bool = True
    silent: bool = False
    closed: bool = False

    def close(self) -> None:
        self.alive, self.closed = False, True


@pytest.fixture
def host(tmp_path: Path) -> SshHost:
    (tmp_path / "config").write_text("")
    return SshHost("bw1", Connection(ssh_config=tmp_path / "config"), Become())


def test_threads_that_find_no_connection_open_one(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Link] = []
    both = threading.Barrier(2, timeout=0.5)

    def open_session(*_: object) -> Link:
        opened.append(Link())
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait()  # two at once, if there are two
        return opened[-1]

    monkeypatch.setattr(sessions, "open_session", open_session)
    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(host._connected) for _ in range(2)]]
    assert found == [opened[0], opened[0]]
    assert len(opened) == 1


def test_a_command_that_lost_its_connection_leaves_the_newer_one_alone(host: SshHost) -> None:
    old, new = Link(), Link()
    host._session = cast(Any, new)
    error = host._broken(cast(Any, old), command("true"))
    assert "the connection broke during: true" in error.message
    assert (old.closed, new.closed) == (True, False)
    assert host._connected() is cast(Any, new)


def test_a_connection_that_comes_when_the_host_is_closed_is_closed_too(
    host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link()

    def open_session(*_: object) -> Link:
        host.close()
        return link

    monkeypatch.setattr(sessions, "open_session", open_session)
    with pytest.raises(UnreachableError, match="the connection was closed"):
        host._connected()
    assert link.closed


@dataclass
class Ending:
    """Stands for a transport: its channels close first, and it ends, or goes on, afterwards."""

    ends: bool
    active: bool = True
    exit_status: int = -1

    def is_active(self) -> bool:
        return self.active

    def join(self, timeout: float) -> None:
        assert timeout > 0
        self.active = self.active and not self.ends

    def exit_status_ready(self) -> bool:
        return True


@pytest.mark.parametrize("ends", [True, False])
def test_a_channel_that_closes_before_its_connection_was_broken_with_it(ends: bool) -> None:
    both = cast(Any, Ending(ends))
    session = sessions.Session(both, keepalive=15, close_hops=lambda: None)
    broken, refused = UnreachableError("the connection broke"), cast(Any, None)
    run = Execution(session, both, None, None, None, None, refused, lambda: broken)
    if ends:
        with pytest.raises(UnreachableError, match="the connection broke"):
            run._finish()
    else:
        run._finish()
        assert run.returncode == -1
