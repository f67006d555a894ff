"""Pure parts of a run: batches, polls, locks, what a unit's state means, exit codes."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any, cast

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.errors import CommandTimeoutError, ExitCode, UnreachableError, UsageError
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.report.events import Silent
from glm5_deploy.report.outcome import ErrorReport, HostOutcome, Report
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.run.fanout import batches, fan_out
from glm5_deploy.run.health import earlier_still_runs, failure
from glm5_deploy.run.jobs import _judge, job_runs, parse_progress, remedy
from glm5_deploy.run.journal import parse_poll
from glm5_deploy.run.lock import Holder, parse_holder
from glm5_deploy.run.session import guarded
from glm5_deploy.stages.change import Transient


@pytest.mark.parametrize(
    ("count", "serial", "sizes"),
    [
        (5, None, [5]),
        (5, "2", [2, 2, 1]),
        (5, "50%", [2, 2, 1]),
        (3, "10%", [1, 1, 1]),
        (3, "100%", [3]),
        (0, "1", []),
    ],
)
def test_batches(count: int, serial: str | None, sizes: list[int]) -> None:
    assert batches(count, serial) == sizes


@pytest.mark.parametrize("serial", ["0", "-1", "x", "101%", "1.5", "%", ""])
def test_bad_batches_are_refused(serial: str) -> None:
    with pytest.raises(UsageError, match="--serial"):
        batches(3, serial)


def targets(*names: str) -> list[Target]:
    profile = Profile.model_validate({"name": "p", "model": {"name": "m"}})
    return [Target(name=name, settings=HostSettings(), profile=profile) for name in names]


def test_one_host_that_fails_leaves_the_others_alone() -> None:
    def work(target: Target) -> HostOutcome:
        if target.name == "b":
            raise UnreachableError("no route", "look at the cable")
        if target.name == "c":
            raise ZeroDivisionError("oops")
        return HostOutcome(target.name, "changed")

    outcomes = fan_out(targets("a", "b", "c", "d"), work, Silent(), Cancel())
    assert [o.status for o in outcomes] == ["changed", "unreachable", "failed", "changed"]
    assert "ZeroDivisionError: oops" in outcomes[2].error.message  # type: ignore[union-attr]


def test_later_batches_are_skipped_after_too_many_failures() -> None:
    def work(target: Target) -> HostOutcome:
        if target.name in "ab":
            raise UnreachableError("gone")
        return HostOutcome(target.name, "changed")

    def statuses(limit: int) -> list[str]:
        found = fan_out(targets(*"abcd"), work, Silent(), Cancel(), serial="1", max_failures=limit)
        return [outcome.status for outcome in found]

    assert statuses(0) == ["unreachable", "skipped", "skipped", "skipped"]
    assert statuses(1) == ["unreachable", "unreachable", "skipped", "skipped"]
    assert statuses(2) == ["unreachable", "unreachable", "changed", "changed"]


def test_no_more_than_forks_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(target: Target) -> HostOutcome:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return HostOutcome(target.name, "changed")

    fan_out(targets(*"abcdefgh"), work, Silent(), Cancel(), forks=3)
    assert most <= 3


def test_an_interrupted_run_starts_no_further_host() -> None:
    cancel = Cancel()

    def work(_target: Target) -> HostOutcome:
        cancel.set()
        cancel.check()
        raise AssertionError("not reached")

    outcomes = fan_out(targets("a", "b", "c"), work, Silent(), cancel, forks=1)
    assert [o.status for o in outcomes] == ["interrupted"] * 3
    assert Report("up", outcomes).exit_code is ExitCode.INTERRUPTED
    with pytest.raises(InterruptedRunError):
        cancel.sleep(5)


def test_poll_output() -> None:
    text = "SubState=running\nActiveState=active\n\none\n\nPROGRESS 0.5 half\n-- cursor: s=1;i=2\n"
    state = parse_poll(text, "old")
    assert state.running
    assert not state.succeeded
    assert state.lines == ("one", "", "PROGRESS 0.5 half")
    assert state.cursor == "s=1;i=2"
    assert parse_poll("SubState=exited\nResult=success\n\n", "old").cursor == "old"
    assert parse_poll("SubState=exited\nResult=success\n\n", "").succeeded
    assert parse_poll("SubState=exited\nResult=timeout\n\n", "").succeeded is False


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        ("ActiveState=active\nSubState=running\n", True),
        ("ActiveState=activating\nSubState=start\n", True),
        ("ActiveState=active\nSubState=exited\n", False),
        ("ActiveState=failed\nSubState=failed\n", False),
        ("ActiveState=inactive\nSubState=dead\n", False),
    ],
)
def test_a_job_that_would_be_joined_is_at_work(said: str, runs: bool) -> None:
    host = FakeHost(expected=[Expected("systemctl", said)])
    assert job_runs(cast(Any, host), "glm5-job-copy-m") is runs


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("PROGRESS 0.25 1 of 4", ("1 of 4", 0.25)),
        ("PROGRESS - working", ("working", None)),
        ("PROGRESS what", None),
        ("something else", None),
    ],
)
def test_progress(line: str, found: tuple[str, float | None] | None) -> None:
    assert parse_progress(line) == found


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"ActiveState": "active", "SubState": "running"}, None),
        ({"ActiveState": "activating", "SubState": "start"}, None),
        ({"ActiveState": "deactivating", "SubState": "stop", "Job": "7"}, None),
        ({"ActiveState": "inactive", "SubState": "dead", "Job": "7"}, None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "Job": "7",
          "ExecMainStatus": "1"}, "status 1"),
        ({"ActiveState": "active", "SubState": "running", "NRestarts": "1"}, "ended"),
        ({"ActiveState": "failed", "Result": "start-limit-hit"}, "start-limit-hit"),
        ({"ActiveState": "inactive", "ExecMainStatus": "0"}, "stopped"),
        ({"LoadState": "not-found"}, "gone"),
    ],
)  # fmt: skip
def test_what_a_units_state_means(properties: dict[str, str], said: str | None) -> None:
    found = failure(properties)
    assert found is None if said is None else said in (found or "")


def test_restarts_before_a_look_are_history() -> None:
    running = {"ActiveState": "active", "SubState": "running", "NRestarts": "2"}
    assert failure(running, restarts=2) is None
    assert failure(running, restarts=1) is not None


@pytest.mark.parametrize(
    ("active", "job", "earlier"),
    [
        ("active", "7", True),
        ("deactivating", "7", True),
        ("activating", "7", False),
        ("inactive", "7", False),
        ("active", "0", False),
        ("active", "", False),
    ],
)
def test_a_server_that_is_about_to_stop_is_not_the_new_one(
    active: str, job: str, earlier: bool
) -> None:
    assert earlier_still_runs({"ActiveState": active, "Job": job}) is earlier


def test_holder() -> None:
    record = {"user": "eve", "machine": "x", "pid": 1, "since": 0, "reason": "up"}
    holder = parse_holder(f"42\ntok 99\n{json.dumps(record)}\n")
    assert holder is not None
    assert (holder.token, holder.seconds_left) == ("tok", 42)
    assert "eve@x (process 1" in str(holder)
    assert parse_holder("") is None
    torn = parse_holder("5\ntok 99\n{oops")
    assert torn is not None
    assert torn.record == {}
    for text in ("[]", "7", "null", '{"since": "then", "pid": "x"}'):
        odd = parse_holder(f"5\ntok 99\n{text}")
        assert odd is not None
        assert "since ?" in str(odd)
        assert not odd.is_dead_here()


def test_a_dead_process_of_this_machine_is_known_dead() -> None:
    from glm5_deploy.run.lock import _boot, _started

    own = {"machine": socket.gethostname(), "boot": _boot(), "pid": os.getpid(),
           "started": _started(os.getpid())}  # fmt: skip
    assert not Holder("t", 1, own).is_dead_here()
    assert Holder("t", 1, {**own, "pid": 2**22 + 1, "started": "1"}).is_dead_here()
    assert Holder("t", 1, {**own, "started": "before"}).is_dead_here()
    assert Holder("t", 1, {**own, "boot": "another"}).is_dead_here()
    assert not Holder("t", 1, {**own, "machine": "elsewhere", "pid": 2**22 + 1}).is_dead_here()


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([0, 1, 3], 1), ([3, 0], 3), ([1, 4], 4), ([4, 2, 1], 2), ([2, 130], 130), ([], 0)],
)
def test_exit_codes(codes: list[int], worst: int) -> None:
    assert ExitCode.worst([ExitCode(code) for code in codes]) == worst


def test_an_error_keeps_its_own_exit_code() -> None:
    def work() -> HostOutcome:
        raise UsageError("no such lock")

    outcome = guarded("a", work)
    assert outcome.status == "failed"
    assert outcome.exit_code is ExitCode.USAGE
    assert outcome.error == ErrorReport("no such lock", None, ExitCode.USAGE)


@pytest.mark.parametrize(
    ("unit", "said", "hint"),
    [
        ("glm5-job-venv-1", "  cause: Bad CRC (got 3f, expected 4b) for file: a.py", "wheel"),
        ("glm5-job-venv-1", "cause: error sending request for url (https://…)", "index_url"),
        ("glm5-job-fetch-m", "OSError: [Errno 28] No space left on device", "free some space"),
        ("glm5-job-venv-1", "mkdir: /opt/glm5: Read-only file system", "can be written"),
        # The same words of a command that fetches a model mean something else.
        ("glm5-job-fetch-m", "error sending request for url (https://…)", None),
        ("glm5-job-venv-1", "error: it broke", None),
        ("glm5-job-verify-m", "missing: m-00002-of-00003.gguf", "model sync"),
    ],
)
def test_a_job_that_failed_says_what_to_do(unit: str, said: str, hint: str | None) -> None:
    found = remedy(unit, said)
    assert (found is None) if hint is None else (hint in (found or ""))


@pytest.mark.parametrize(
    ("unit", "key"),
    [
        ("glm5-job-venv-1", "limits.install"),
        ("glm5-job-copy-m", "limits.sync"),
        ("glm5-job-fetch-m-1", "limits.sync"),
        ("glm5-job-verify-m", "limits.sync"),
        ("glm5-job-packages-1", None),
    ],
)
def test_a_job_past_its_limit_names_the_key_that_sets_it(unit: str, key: str | None) -> None:
    job = Transient(unit, command("true"), 30)
    state = parse_poll("SubState=failed\nActiveState=failed\nResult=timeout\n\n", "")
    with pytest.raises(CommandTimeoutError, match=f"{unit} ran past its limit of 30 s") as caught:
        _judge(job, state, [])
    hint = caught.value.hint
    assert hint is None if key is None else key in (hint or "")
