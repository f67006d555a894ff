"""Switch, wait, prove, confirm; or take it back (the host does that where we cannot)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glm5_deploy.config.models import Target
from glm5_deploy.errors import Glm5Error, RevertedError, RevertFailedError, UnreachableError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import Check, SmokeChecksError
from glm5_deploy.run.cancel import InterruptedRunError
from glm5_deploy.run.earlier import as_it_was
from glm5_deploy.run.health import Watch
from glm5_deploy.run.steps import Executor
from glm5_deploy.stages import service
from glm5_deploy.stages.change import Change
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed


def smoke_rows(
    host: Host, target: Target, events: Events, api_key: Secret | None
) -> tuple[Check, ...]:
    """Smoke-test as a stage of its own; httpx is imported only now."""
    from glm5_deploy.smoke.run import run_smoke

    events.stage(host.name, "smoke")
    return run_smoke(host, target, events, api_key=api_key)


def require_passed(name: str, checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """The rows themselves, where none failed.

    Raises:
        SmokeChecksError: with all rows.
    """
    if any(check.status == "failed" for check in checks):
        raise SmokeChecksError(name, checks)
    return checks


def _nothing() -> None:
    """For runs without a lock of their own."""


@dataclass
class Transaction:
    """One host's way from a switch to its confirmation.

    Args:
        still_ours: raises where the host's lock was lost; asked before the confirmation.
    """

    desired: Desired
    observed: Observed
    executor: Executor
    api_key: Secret | None
    still_ours: Callable[[], None] = _nothing

    def carry_out(self, changes: Sequence[Change]) -> tuple[Check, ...]:
        """Apply the service stage's changes, then wait, smoke-test and confirm.

        Raises:
            RevertedError: the release did not prove itself; the host is back where it was.
            InterruptedRunError: Ctrl-C; what was switched was taken back.
        """
        armed = False
        try:
            for change in changes:
                armed = armed or change.action in {"switch", "confirm"}
                self.executor.apply(change)
            checks = self.prove()
            if armed:
                self.still_ours()
                self._confirm()
            return checks
        except Exception as error:
            if armed:
                self._take_back(error)
            raise

    def prove(self) -> tuple[Check, ...]:
        """Wait until the server answers, then smoke-test it.

        Raises:
            UnhealthyError: it does not become healthy.
            SmokeChecksError: a check failed.
        """
        host, target = self.executor.host, self.desired.target
        limits = target.profile.limits
        self.executor.events.stage(host.name, "health")
        watch = Watch(host, target, self.executor.events, self.executor.cancel, limits.load)
        watch.until_healthy(self.api_key)
        checks = smoke_rows(host, target, self.executor.events, self.api_key)
        self.executor.cancel.check()
        return require_passed(host.name, checks)

    def _confirm(self) -> None:
        release = self.desired.release.identifier
        command = service.agent(self.desired, self.observed, "confirm", release)
        self.executor.host.run(command, sudo=True)

    def _take_back(self, cause: Exception) -> None:
        host = self.executor.host
        self.executor.events.stage(host.name, "revert")
        reason = str(cause).splitlines()[0][:300]
        release = self.desired.release.identifier
        command = service.agent(self.desired, self.observed, "revert", release, reason)
        try:
            limit = 300 + self.desired.target.profile.limits.stop
            done = json.loads(host.run(command, sudo=True, timeout=limit).stdout)
        except UnreachableError as error:
            raise UnreachableError(
                f"{cause}; and the host is away: it takes the release back by itself "
                f"{service.confirm_within(self.desired)} s after the switch",
                error.hint,
            ) from cause
        except Glm5Error as error:
            raise RevertFailedError(
                f"{cause}\nit could not be taken back: {error.message}", error.hint
            ) from cause
        if isinstance(cause, InterruptedRunError):
            raise InterruptedRunError(f"interrupted{_taken_back(done)}") from cause
        hint = cause.hint if isinstance(cause, Glm5Error) else None
        if done["reverted"] is None:
            raise RevertedError(f"{cause}\n{_somebody_else(done)}", hint) from cause
        previous = done.get("previous")
        back = "stopped and disabled, as before" if _stopped(done) else self._await(previous)
        where = f"back on {previous}: {back}" if previous else back
        raise RevertedError(f"{cause}\nreverted: {where}", hint) from cause

    def _await(self, previous: str) -> str:
        """Whether the earlier release serves again; a failure of that is told, not raised."""
        host = self.executor.host
        limit = self.desired.target.profile.limits.load
        try:
            target = as_it_was(host, self.desired.target, previous)
            Watch(host, target, self.executor.events, self.executor.cancel, limit).until_healthy(
                None, generate=False
            )
        except Glm5Error as error:
            return f"which does not answer yet ({error.message.splitlines()[0]})"
        return "it answers again"


def _stopped(done: dict[str, Any]) -> bool:
    """Whether no server runs after a revert: none was deployed, or it had been taken down."""
    return done["previous"] is None or bool(done.get("down"))


def _taken_back(done: dict[str, Any]) -> str:
    """What became of the switch that was interrupted."""
    if done["reverted"] is None:
        return ""
    again = f"{done['previous']} starts again"
    back = "the server is stopped, as before" if _stopped(done) else again
    return f": the switch to {done['reverted']} was taken back; {back}"


def _somebody_else(done: dict[str, Any]) -> str:
    """What to say where our switch was not the pending one any more."""
    if done["pending"]:
        return f"another run switched to {done['pending']} meanwhile: that was left alone"
    there = f"{done['current']} is current" if done["current"] else "nothing is deployed"
    return f"it had been taken back already: {there}"
