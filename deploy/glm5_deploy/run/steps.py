"""Carrying out the steps of a change."""

from __future__ import annotations

from dataclasses import dataclass, field

from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.command import Command, Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.peer import Peers
from glm5_deploy.kernel_doctor import run_doctor
from glm5_deploy.rehearsal import run_rehearsal
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import DoctorChecksError
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.jobs import run_job
from glm5_deploy.stages.change import (
    Change,
    Copy,
    Examine,
    Put,
    Rehearse,
    Rsync,
    Run,
    Step,
    Transient,
)


@dataclass(frozen=True)
class Executor:
    """Applies changes to one host and says how far it is.

    Args:
        peers: gives another host of the inventory, to copy from.
    """

    host: Host
    events: Events
    cancel: Cancel
    applied: list[Change] = field(default_factory=list)
    peers: Peers | None = None

    def apply(self, change: Change) -> None:
        """Carry a change's steps out in order.

        Raises:
            DoctorChecksError: the doctor found something; nothing was switched.
            PreflightError: vLLM refuses its arguments; nothing was switched.
            Glm5Error: a step failed; what was done before it stays and may be repeated.
        """
        for step in change.steps:
            self.cancel.check()
            self._step(step)
        self.applied.append(change)
        self.events.change(self.host.name, change.report)

    def _step(self, step: Step) -> None:
        match step:
            case Run(command, timeout, stdin):
                self.host.run(command, sudo=True, timeout=timeout, stdin=stdin)
            case Put(path, content, mode, owner):
                data = content.value.encode() if isinstance(content, Secret) else content
                self.host.put(data, path, mode=mode, owner=owner)
            case Rsync(source, target, include, checksum, delete):
                self.host.rsync(
                    source, target, include=include, checksum=checksum, delete=delete,
                    progress=self._progress, check=self.cancel.check,
                )  # fmt: skip
            case Copy():
                self._copy(step)
            case Examine(command, limit):
                self._examine(command, limit)
            case Rehearse(command, limit, known, hidden):
                self._progress("vLLM reads its arguments", None)
                row = run_rehearsal(self.host, command, limit, known, hidden)
                self.events.check(self.host.name, row)
            case Transient():
                run_job(
                    self.host, step, cancel=self.cancel, progress=self._progress, note=self._note
                )

    def _copy(self, step: Copy) -> None:
        from glm5_deploy.run.peer import copy_from_peer

        if self.peers is None:
            raise UsageError(
                f"{step.peer} is in no inventory", "model.source_host needs one: name it with -i"
            )
        with self.peers(step.peer) as peer:
            manifest = copy_from_peer(
                self.host, peer, step, cancel=self.cancel, progress=self._progress, note=self._note
            )
        self.host.put(manifest.text().encode(), step.manifest_path)

    def _examine(self, command: Command, limit: int) -> None:
        self._progress("the doctor tries vLLM, the kernels and the GPUs", None)
        found = run_doctor(self.host, command, limit)
        for row in found.checks:
            self.events.check(self.host.name, row)
        if found.failed:
            raise DoctorChecksError(self.host.name, found.checks)

    def _progress(self, text: str, fraction: float | None) -> None:
        self.events.progress(self.host.name, text, fraction)

    def _note(self, text: str) -> None:
        self.events.note(self.host.name, text)
