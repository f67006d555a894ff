"""Waiting for a server, without a machine: what the unit's states come to."""

from __future__ import annotations

from typing import Any, cast

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.report.events import Silent
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.health import UnhealthyError, Watch


def watch(*looks: str, limit: float = 0.0) -> Watch:
    """Of a unit that looks like this, one look after the other."""
    host = FakeHost(
        expected=[Expected("sh", look if "\n\n" in look else f"{look}\n\n") for look in looks]
    )
    profile = Profile.model_validate({"name": "tiny", "model": {"name": "tiny"}})
    target = Target(name="node1", settings=HostSettings(), profile=profile)
    return Watch(cast(Any, host), target, Silent(), Cancel(), limit)


def refused(watching: Watch) -> UnhealthyError:
    with pytest.raises(UnhealthyError) as caught:
        watching.until_healthy(None)
    return caught.value


def test_an_earlier_server_that_never_stops_is_not_waited_for_without_end() -> None:
    stopping = "ActiveState=deactivating\nSubState=stop-sigterm\nJob=7"
    error = refused(watch(stopping))
    assert error.message == "node1: the earlier server has not stopped within 0 s"
    assert "systemctl list-jobs" in (error.hint or "")


def test_one_that_does_not_answer_in_time() -> None:
    error = refused(watch("ActiveState=active\nSubState=running\n\nloading\n-- cursor: s=1"))
    assert error.message == "node1: not healthy within 0 s\n    loading"
    assert "limits.load" in (error.hint or "")


def test_what_it_said_in_all_looks_explains_its_end() -> None:
    loading = "ActiveState=active\nSubState=running\n\none\n-- cursor: s=1"
    failed = "ActiveState=failed\nResult=exit-code\nExecMainStatus=1\n\ntwo\n-- cursor: s=2"
    watching = watch(loading, failed, limit=60)
    error = refused(watching)
    assert error.message == "node1: the unit failed (exit-code, status 1)\n    one\n    two"
    assert error.lines == ("one", "two")
    assert [look.argv[-1] for look in cast(FakeHost, watching.host).commands] == ["", "s=1"]


def test_restarts_are_counted_from_the_fewest_seen() -> None:
    """A start by hand sets systemd's count back; the next restart is one of the new server."""
    looks = [f"ActiveState=active\nSubState=running\nNRestarts={number}" for number in (3, 0, 1)]
    assert "ended with status" in refused(watch(*looks, limit=60)).message
