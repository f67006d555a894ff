"""Long commands in transient units of a real host."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.errors import CommandFailedError
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.ssh import SshHost
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.jobs import run_job
from glm5_deploy.stages.change import Transient

from tests.e2e.hosts_support import eventually, opened


@pytest.fixture
def host(bed: Bed, fresh_host: BedHost) -> Iterator[SshHost]:
    with opened(bed, fresh_host.name) as host:
        yield host


def run(host: SshHost, text: str, user: str | None = None) -> tuple[str, ...]:
    job = Transient("glm5-job-test", script(text), 30, user=user)
    return run_job(host, job, cancel=Cancel(), progress=lambda *_: None, note=pytest.fail)


@contextmanager
def journal_held(host: BedHost) -> Iterator[None]:
    """What is said meanwhile is read afterwards, by when a short process is gone."""
    host.exec(["systemctl", "kill", "--signal=STOP", "systemd-journald"])
    try:
        yield
    finally:
        host.exec(["systemctl", "kill", "--signal=CONT", "systemd-journald"])


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


def test_a_job_that_fails_at_once_tells_why_each_time(host: SshHost) -> None:
    for number in range(10):
        with pytest.raises(CommandFailedError, match=rf"with status 3\nsorry {number}$"):
            run(host, f"echo sorry {number}; exit 3")


def test_systemd_tells_what_it_could_not_begin(host: SshHost) -> None:
    with pytest.raises(CommandFailedError, match=r"with status 217\n.*at step USER spawning"):
        run(host, "true", "nobody-here")
