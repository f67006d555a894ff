"""One host's whole run: observe, check, plan, apply under the lock, prove, confirm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from glm5_deploy.errors import Glm5Error, PreflightError, UnreachableError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.peer import Peers
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import (
    Check,
    DoctorChecksError,
    ErrorReport,
    HostOutcome,
    SmokeChecksError,
    Status,
)
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.run.lock import Lease, locked
from glm5_deploy.stages.change import Change
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed, observe
from glm5_deploy.stages.plan import interrupts_service, plan
from glm5_deploy.stages.preflight import preflight


@dataclass(frozen=True)
class Options:
    """What `up` was asked for.

    Args:
        check: show the plan and change nothing.
        smoke: smoke-test also where nothing changed.
        keep_releases: how many releases beside the current and the previous one stay.
    """

    check: bool = False
    smoke: bool = False
    keep_releases: int = 3


@dataclass
class HostRun:
    """Brings one host to what is desired."""

    host: Host
    desired: Desired
    api_key: Secret | None
    events: Events
    cancel: Cancel
    options: Options
    peers: Peers | None = None
    changes: list[Change] = field(default_factory=list)
    applied: list[Change] = field(default_factory=list)
    checks: tuple[Check, ...] = ()
    warnings: tuple[Check, ...] = ()
    memory: tuple[Check, ...] | None = None
    index: tuple[Check, ...] | None = None
    current: str | None = None

    def up(self) -> HostOutcome:
        """Do it all; every error becomes the outcome."""
        return guarded(self.host.name, self._up, self._outcome)

    def _up(self) -> HostOutcome:
        observed = self._observe()
        self._tell_reverted(observed)
        self.changes = plan(self.desired, observed)
        if self.options.check:
            status: Status = "changed" if self.changes else "unchanged"
            return self._outcome(status, data={"check": True})
        if self.changes:
            self._apply()
            return self._outcome("changed" if self.applied else "unchanged")
        self._confirm_health(observed)
        return self._outcome("unchanged")

    def _observe(self) -> Observed:
        """Facts, and a refusal where the host cannot take this.

        Raises:
            PreflightError: with every problem and its remedy.
        """
        self.events.stage(self.host.name, "preflight")
        observed = observe(self.host, self.desired.target)
        pending = observed.deployment.pending
        self.current = pending.get("previous") if pending else observed.deployment.current
        rows = (
            *preflight(self.desired, observed),
            *self._index(observed),
            *self._memory(observed),
        )
        problems = [row for row in rows if row.status == "failed"]
        if problems:
            for row in problems:
                self.events.check(self.host.name, row)
            self.checks = rows
            text = "\n".join(f"    {row.name}: {row.detail}" for row in problems)
            hints = "; ".join(dict.fromkeys(row.hint for row in problems if row.hint))
            raise PreflightError(f"{self.host.name}: nothing was changed\n{text}", hints)
        self.warnings = tuple(row for row in rows if row.status == "warning")
        return observed

    def _index(self, observed: Observed) -> tuple[Check, ...]:
        """Whether the package index answers: asked once."""
        if self.index is None:
            from glm5_deploy.package_index import rows

            self.index = rows(self.host, self.desired, observed)
        return self.index

    def _memory(self, observed: Observed) -> tuple[Check, ...]:
        """Whether the model fits on the GPUs: asked once, and not for the release that serves."""
        if observed.deployment.current == self.desired.release.identifier:
            return ()
        if self.memory is None:
            from glm5_deploy.memory.check import rows

            self.memory = rows(self.host, self.desired, observed, self.peers)
        return self.memory

    def _tell_reverted(self, observed: Observed) -> None:
        reverted = observed.deployment.reverted
        if reverted:
            at = time.strftime("%Y-%m-%d %H:%M", time.localtime(reverted.get("at", 0)))
            what = f"release {reverted.get('reverted')} was reverted at {at}"
            self.events.note(self.host.name, f"{what}: {reverted.get('reason')}")

    def _apply(self) -> None:
        """Everything that changes the host; facts are read again once the lock is ours."""
        paths = self.desired.paths
        with locked(self.host, paths.state, "up") as (lease, taken_from):
            if taken_from is not None:
                self.events.note(self.host.name, f"took over the lock of {taken_from}")
            observed = self._observe()
            self.changes = plan(self.desired, observed)
            for row in self.warnings:
                self.events.check(self.host.name, row)
            if any(change.stage == "service" for change in self.changes):
                self._require_forwarding()
            self._carry_out(observed, lease)
            added = any(change.stage in {"release", "venv"} for change in self.applied)
            if added and (observed.deployment.releases or observed.deployment.venvs):
                self._prune(observed)

    def _require_forwarding(self) -> None:
        """Without it a good release could not be proven, and would be taken back.

        Raises:
            PreflightError: the host's sshd forwards no connections.
        """
        from glm5_deploy.config.address import dial_address

        serve = self.desired.target.profile.serve
        try:
            self.host.dial(dial_address(serve.host), serve.port).close()
        except UnreachableError as error:
            raise PreflightError(f"{error.message}\nnothing was changed", error.hint) from error
        except OSError:
            return  # nothing listens yet

    def _carry_out(self, observed: Observed, lease: Lease) -> None:
        from glm5_deploy.run.steps import Executor
        from glm5_deploy.run.transaction import Transaction

        executor = Executor(self.host, self.events, self.cancel, self.applied, self.peers)
        service = [change for change in self.changes if change.stage == "service"]
        stage = ""
        for change in self.changes:
            lease.check()
            if change.stage == "service":
                break
            if change.stage != stage:
                stage = change.stage
                self.events.stage(self.host.name, stage)
            executor.apply(change)
        if service:
            self.events.stage(self.host.name, "service")
        if interrupts_service(service):
            self.cancel.check()
            limit = self.desired.target.profile.limits.load
            text = f"the server stops now, until the new one has loaded (limit {limit} s)"
            self.events.note(self.host.name, text)
        transaction = Transaction(
            self.desired, observed, executor, self.api_key, still_ours=lease.renew
        )
        self.checks = transaction.carry_out(service)

    def _prune(self, observed: Observed) -> None:
        """Old releases and environments go; the current, the previous and a few more stay."""
        from glm5_deploy.stages.service import agent

        prune = agent(self.desired, observed, "prune", str(self.options.keep_releases))
        try:
            self.host.run(prune, sudo=True, timeout=300)
        except Glm5Error as error:
            self.events.note(self.host.name, f"old releases were not pruned: {error.message}")

    def _confirm_health(self, observed: Observed) -> None:
        """Nothing to change: ask once, wait where it still loads, smoke-test where asked."""
        from glm5_deploy.smoke.health import health

        serve = self.desired.target.profile.serve
        # Where our own server is not up, it is a stranger that answers there.
        quick = observed.unit.active and not self.options.smoke
        if quick and health(self.host, serve.host, serve.port) == 200:
            self.checks = (Check("health", "passed", "200"),)
            return
        from glm5_deploy.run.steps import Executor
        from glm5_deploy.run.transaction import Transaction

        executor = Executor(self.host, self.events, self.cancel)
        transaction = Transaction(self.desired, observed, executor, self.api_key)
        self.checks = transaction.prove()

    def _outcome(
        self,
        status: Status,
        error: ErrorReport | None = None,
        data: dict[str, object] | None = None,
    ) -> HostOutcome:
        good = status in {"changed", "unchanged"}
        shown = self.changes if good else self.applied
        return HostOutcome(
            self.host.name,
            status,
            changes=tuple(change.report for change in shown),
            release=self.desired.release.identifier if good else self.current,
            checks=self.checks,
            error=error,
            data=data or {},
        )


def guarded(
    name: str,
    work: Callable[[], HostOutcome],
    outcome: Callable[[Status, ErrorReport | None], HostOutcome] | None = None,
) -> HostOutcome:
    """Run a host's work and turn any error into its outcome; programming errors too, so that other
    hosts go on.
    """
    from dataclasses import replace

    from glm5_deploy.errors import RevertedError

    started = time.monotonic()
    make = outcome or (lambda status, error: HostOutcome(name, status, error=error))
    try:
        result = work()
    except InterruptedRunError as error:
        result = make("interrupted", _report(name, error))
    except UnreachableError as error:
        result = make("unreachable", _report(name, error))
    except RevertedError as error:
        result = make("reverted", _report(name, error))
        if isinstance(error.__cause__, SmokeChecksError):
            result = replace(result, checks=error.__cause__.checks)
    except (SmokeChecksError, DoctorChecksError) as error:
        result = replace(make("failed", _report(name, error)), checks=error.checks)
    except Glm5Error as error:
        result = make("failed", _report(name, error))
    except Exception as error:
        result = make("failed", _unexpected(error))
    return replace(result, seconds=time.monotonic() - started)


def _report(name: str, error: Glm5Error) -> ErrorReport:
    """Every report names the host beside the message, so the message need not."""
    return ErrorReport(error.message.removeprefix(f"{name}: "), error.hint, error.exit_code)


def _unexpected(error: Exception) -> ErrorReport:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    return ErrorReport(
        f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})",
        "this is a fault of glm5-deploy: please report it with the output of -v",
    )
