"""A model's files alone: bring them, read them all; the server is left as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from glm5_deploy.errors import PreflightError, UsageError
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.peer import Peers
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import HostOutcome
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.lock import locked
from glm5_deploy.run.steps import Executor
from glm5_deploy.stages import kernel, model, system, venv
from glm5_deploy.stages.change import Change
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.manifest import parse_manifest
from glm5_deploy.stages.observed import Observed, observe

Planned = Callable[[Observed], list[Change]]
Prepared = Callable[[Desired, Observed], list[Change]]


@dataclass
class ModelRun:
    """Works on one host's model under its lock."""

    host: Host
    desired: Desired
    events: Events
    cancel: Cancel
    peers: Peers | None = None
    applied: list[Change] = field(default_factory=list)

    def verify(self) -> HostOutcome:
        """Read every file, whatever was verified before; make a manifest where there is none.

        Raises:
            PreflightError: there are no files.
            CommandFailedError: a file is missing, or is not what the manifest says.
        """
        return self._carry_out("model verify", self._verification, system.folders)

    def sync(self, *, again: bool) -> HostOutcome:
        """Bring what is missing, and verify.

        Args:
            again: compare contents, or fetch anew, though all seems to be there.

        Raises:
            UsageError: the profile does not say where the files come from.
        """
        spec = self.desired.target.profile.model
        if spec.source is None and spec.source_host is None and spec.fetch is None:
            raise UsageError(
                f"profile {self.desired.target.profile.name} does not say where its model comes"
                " from",
                "set model.source, model.source_host or model.fetch",
            )
        return self._carry_out(
            "model sync", lambda observed: self._delivery(observed, again), system.plan
        )  # fmt: skip

    def _verification(self, observed: Observed) -> list[Change]:
        if not observed.deployment.model_files:
            raise PreflightError(
                f"no files in {self.desired.paths.model}", "`glm5-deploy model sync` brings them"
            )
        return [
            *system.programs(self.desired, observed),
            model.verification(self.desired, observed),
        ]

    def _delivery(self, observed: Observed, again: bool) -> list[Change]:
        desired = self.desired
        changes = [model.bring(desired, observed, checksum=True)] if again else []
        wanted = [each for each in changes if each is not None] or model.plan(desired, observed)
        if not wanted:
            return []
        fetch = desired.target.profile.model.fetch or []
        stages = [venv, kernel] if any("{venv}" in word for word in fetch) else []
        built = [change for stage in stages for change in stage.plan(desired, observed)]
        # The doctor is for a switch, and none is made here.
        built = [change for change in built if change.action != "verify"]
        return [*system.plan(desired, observed), *built, *wanted]

    def _carry_out(self, name: str, planned: Planned, prepared: Prepared) -> HostOutcome:
        """Work under the lock; a host that has no folder for one yet gets it first."""
        before = observe(self.host, self.desired.target)
        if not planned(before):
            return self._outcome(before)
        if not before.deployment.folders:
            self._apply(prepared(self.desired, before))
        with locked(self.host, self.desired.paths.state, name):
            self._apply(planned(observe(self.host, self.desired.target)))
        return self._outcome(observe(self.host, self.desired.target))

    def _apply(self, changes: list[Change]) -> None:
        executor = Executor(self.host, self.events, self.cancel, self.applied, self.peers)
        stage = ""
        for change in changes:
            if change.stage != stage:
                stage = change.stage
                self.events.stage(self.host.name, stage)
            executor.apply(change)

    def _outcome(self, observed: Observed) -> HostOutcome:
        """With the manifest's own hash, which a profile signs."""
        text, deployed = observed.deployment.model_manifest, observed.deployment
        key = parse_manifest(text, self.host.name).key() if text else None
        files = dict(deployed.model_files or {})
        files.pop(self.desired.paths.manifest.name, None)
        data: dict[str, object] = {
            "folder": str(self.desired.paths.model),
            "files": len(files),
            "bytes": sum(state.size for state in files.values()),
            "manifest_sha256": key,
        }
        return HostOutcome(
            self.host.name,
            "changed" if self.applied else "unchanged",
            changes=tuple(change.report for change in self.applied),
            release=deployed.current,
            data=data,
        )
