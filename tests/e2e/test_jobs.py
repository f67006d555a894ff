"""Long commands in transient units of a real host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.errors import CommandFailedError, CommandTimeoutError, UnreachableError
from glm5_deploy.hosts.command import Command, script
from glm5_deploy.hosts.host import Result
from glm5_deploy.hosts.ssh import SshHost
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.jobs import run_job
from glm5_deploy.stages.change import Transient

from tests.e2e.hosts_support import eventually, opened


@pytest.fixture
def host(bed: Bed, fresh_host: BedHost) -> Iterator[SshHost]:
    with opened(bed, fresh_host.name) as host:
        yield host


def run(
    host: SshHost,
    text: str,
    user: str | None = None,
    note: Callable[[str], None] = pytest.fail,
    limit: int = 30,
) -> tuple[str, ...]:
    job = Transient("glm5-job-test", script(text), limit, user=user)
    return run_job(host, job, cancel=Cancel(), progress=lambda *_: None, note=note)


@contextmanager
def journal_held(host: BedHost) -> Iterator[None]:
    """What is said meanwhile is read afterwards, by when a short process is gone."""
    host.exec(["systemctl", "kill", "--signal=STOP", "systemd-journald"])
    try:
        yield
    finally:
        host.exec(["systemctl", "kill", "--signal=CONT", "systemd-journald"])


def left(host: BedHost) -> str:
    """Units of jobs that systemd knows, ended ones too."""
    listing = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "glm5-job-*"]
    return host.exec(listing).stdout.strip()


def ended(host: BedHost) -> bool:
    show = ["systemctl", "show", "--property=SubState", "--value", "glm5-job-test"]
    return host.exec(show).stdout.strip() in {"failed", "exited"}


@pytest.mark.parametrize("status", [0, 7])
def test_what_a_short_job_said_is_read_though_it_is_gone(
    host: SshHost, fresh_host: BedHost, status: int
) -> None:
    run(host, "echo of an earlier start")
    with ThreadPoolExecutor(1) as pool:
        with journal_held(fresh_host):
            result = pool.submit(run, host, f"echo said $((6 * 7)); exit {status}")
            eventually(lambda: ended(fresh_host))
        if status:
            with pytest.raises(CommandFailedError, match=r"with status 7\nsaid 42") as caught:
                result.result()
            assert "earlier" not in str(caught.value)
        else:
            assert result.result() == ("said 42",)


def test_a_job_that_fails_at_once_tells_why_each_time(host: SshHost, fresh_host: BedHost) -> None:
    for number in range(10):
        with pytest.raises(CommandFailedError, match=rf"with status 3\nsorry {number}$"):
            run(host, f"echo sorry {number}; exit 3")
        assert left(fresh_host) == ""


def test_systemd_tells_what_it_could_not_begin(host: SshHost, fresh_host: BedHost) -> None:
    with pytest.raises(CommandFailedError, match=r"with status 217\n.*at step USER spawning"):
        run(host, "true", "nobody-here")
    assert left(fresh_host) == ""


def test_one_that_ignores_its_end_at_the_limit_leaves_nothing(
    host: SshHost, fresh_host: BedHost
) -> None:
    text = "trap 'sleep 2; exit 0' TERM; echo began; sleep 60 & wait"
    with pytest.raises(CommandTimeoutError, match=r"ran past its limit of 1 s\nbegan"):
        run(host, text, limit=1)
    assert left(fresh_host) == ""


@pytest.mark.parametrize("status", [0, 7])
def test_an_end_that_was_told_over_a_connection_that_broke(
    host: SshHost, fresh_host: BedHost, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The answer that tells the end is lost: it is asked again."""
    answer, lost = host.run, []

    def breaks(command: Command, **more: Any) -> Result:  # noqa: ANN401
        found = answer(command, **more)
        if not lost and ("SubState=exited" in found.stdout or "SubState=failed" in found.stdout):
            lost.append(found)
            raise UnreachableError("node1: the connection broke")
        return found

    notes: list[str] = []
    monkeypatch.setattr(host, "run", breaks)
    if status:
        with pytest.raises(CommandFailedError, match=r"with status 7\nsaid 42"):
            run(host, "echo said 42; exit 7", note=notes.append)
    else:
        assert run(host, "echo said 42", note=notes.append) == ("said 42",)
    assert len(lost) == 1
    assert notes == ["connection lost; the work goes on there; reconnecting"]
    assert left(fresh_host) == ""
