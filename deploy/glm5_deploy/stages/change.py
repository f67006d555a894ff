"""A change and the steps that make it: typed values, so that a plan can be shown, tested and
applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from glm5_deploy.hosts.command import Command, Secret
from glm5_deploy.report.outcome import ChangeReport
from glm5_deploy.stages.manifest import Manifest

Action = Literal[
    "install", "create", "sync", "verify", "write", "enable", "switch", "confirm", "start"
]


@dataclass(frozen=True)
class Run:
    """Run a command as root."""

    command: Command
    timeout: float | None = 120.0
    stdin: bytes | None = None


@dataclass(frozen=True)
class Put:
    """Write a file as root. Secret content is masked wherever the plan is shown."""

    path: PurePosixPath
    content: bytes | Secret
    mode: int = 0o644
    owner: str | None = None


@dataclass(frozen=True)
class Transient:
    """Run a long command in a transient unit that outlives the connection; one that still runs is
    joined.

    Args:
        unit: its name, derived from what it does, so that the same work has the same name.
        limit: seconds until systemd ends it.
        user: it runs as this user; None: as root.
        secrets: a file on the host with variables for it, which only root can read.
        variables: another file with variables, which are not secret.
        collect: one that ended after its operator had gone is not run again: what it said is taken.
        hidden: what must not show though the command may say it; `secrets` is then a file for this
            job alone, which is removed as soon as it has been read.
    """

    unit: str
    command: Command
    limit: int
    user: str | None = None
    secrets: PurePosixPath | None = None
    variables: PurePosixPath | None = None
    collect: bool = False
    hidden: tuple[Secret, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Copy a model's files from another host of the inventory (see `run.peer`); what they have to
    match is written to `manifest_path`.

    Args:
        peer: that host's name.
        name: the model's.
        source: the folder there; None: the peer's ROOT/models/NAME.
        address: how this host reaches the peer, or None.
        target: the folder here.
        unit: of the transfer.
        limit: seconds that it may take.
        manifest: the profile's, or None: the peer's own.
        signed: the hash that the manifest must have, or None.
        checksum: compare contents.
        python, deliver: our program on the host and what it runs on.
        scratch: a folder that the login user may write in.
    """

    peer: str
    name: str
    source: PurePosixPath | None
    address: str | None
    target: PurePosixPath
    unit: str
    limit: int
    manifest: Manifest | None
    signed: str | None
    checksum: bool
    python: PurePosixPath
    deliver: PurePosixPath
    scratch: PurePosixPath
    manifest_path: PurePosixPath


@dataclass(frozen=True)
class Rsync:
    """Copy a local folder to the host as the login user, resumable."""

    source: Path
    target: PurePosixPath
    include: tuple[str, ...] = ()
    checksum: bool = False
    delete: bool = False


@dataclass(frozen=True)
class Examine:
    """Run glm5-kernel's doctor (see `kernel_doctor`); a row that failed ends the run here.

    Args:
        limit: seconds that it may take.
    """

    command: Command
    limit: int


@dataclass(frozen=True)
class Rehearse:
    """Let vLLM read its arguments and the model's configuration (see `rehearsal`); a refusal ends
    the run here.

    Args:
        limit: seconds that it may take.
        known: arguments of the profile by vLLM's names, to tell the one that is meant.
        hidden: what must not show though vLLM may say it.
    """

    command: Command
    limit: int
    known: tuple[str, ...]
    hidden: tuple[Secret, ...] = ()


Step = Run | Put | Transient | Rsync | Copy | Examine | Rehearse


@dataclass(frozen=True)
class Change:
    """Something that differs from what is wanted, with the steps that mend it.

    Args:
        target: what is changed, as a user names it.
        detail: why, in a few words.
        diff: unified diff of a file, secrets masked.
    """

    stage: str
    action: Action
    target: str
    detail: str = ""
    steps: tuple[Step, ...] = ()
    diff: str | None = None
    downtime: bool = False

    @property
    def report(self) -> ChangeReport:
        return ChangeReport(self.stage, self.action, self.target)
