"""A host's run as a whole, where neither a host nor a plan is needed to see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.fake import FakeHost
from glm5_deploy.report.events import Silent
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.run.session import HostRun, Options
from glm5_deploy.stages.change import Change, Run

from tests.unit.stages.situation import bare, desired


class Notes(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def note(self, host: str, text: str) -> None:  # noqa: ARG002
        self.kept.append(text)


def test_who_interrupts_in_time_is_not_told_that_the_server_stops() -> None:
    events, cancel = Notes(), Cancel()
    run = HostRun(FakeHost(), desired(), None, events, cancel, Options())
    step = Run(command("true"))
    run.changes = [Change("service", "switch", "new", "", (step,), downtime=True)]
    lease = SimpleNamespace(check=lambda: None, renew=lambda: None)
    cancel.set()
    with pytest.raises(InterruptedRunError):
        run._carry_out(bare(), cast(Any, lease))
    assert events.kept == []
