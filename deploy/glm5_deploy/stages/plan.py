"""The whole plan of a host: every stage's, in the order in which they build on each other."""

from __future__ import annotations

from glm5_deploy.stages import kernel, model, rehearsal, release, service, system, venv
from glm5_deploy.stages.change import Change
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed

PREPARING = (system, venv, kernel, model, release)
"""Stages that leave the running service alone."""


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """All changes, in order; empty where the host is as it should be."""
    changes = [change for stage in PREPARING for change in stage.plan(desired, observed)]
    last = service.plan(desired, observed)
    if interrupts_service(last):
        changes += rehearsal.plan(desired, observed)
    return [*changes, *last]


def interrupts_service(changes: list[Change]) -> bool:
    """Whether a running server would be stopped."""
    return any(change.downtime for change in changes)
