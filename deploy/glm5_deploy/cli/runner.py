"""What every command on hosts shares: a screen, a fan-out, a report, an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from glm5_deploy.config.models import Target
    from glm5_deploy.hosts.command import Secret
    from glm5_deploy.hosts.host import Host
    from glm5_deploy.hosts.peer import Peer
    from glm5_deploy.report.events import Events
    from glm5_deploy.report.outcome import HostOutcome, Report
    from glm5_deploy.run.cancel import Cancel
    from glm5_deploy.stages.desired import Desired
    from glm5_deploy.stages.manifest import Manifest


@dataclass(frozen=True)
class Job:
    """What a command's work on one host gets.

    Args:
        base: the folder that relative references of the inventory start from.
        inventory: as it was named, if it was.
    """

    target: Target
    host: Host
    events: Events
    cancel: Cancel
    base: Path
    inventory: Path | None = None

    def desired(self) -> Desired:
        """What this host should be, with secrets resolved now."""
        from glm5_deploy.run.lock import operator
        from glm5_deploy.stages.desired import build_desired

        return build_desired(
            self.target,
            resolve_secret=self.secret,
            kernel_wheel=kernel_wheel,
            manifest=manifest,
            operator=operator(),
        )

    def secret(self, reference: str) -> Secret:
        """Resolve one reference."""
        from glm5_deploy.config.references import resolve_secret

        return resolve_secret(reference, self.base)

    @contextmanager
    def peer(self, name: str) -> Iterator[Peer]:
        """Another host of the inventory, to copy from.

        Raises:
            UsageError: there is no inventory, or no such host in it.
        """
        from glm5_deploy.cli.options import peer_of

        with peer_of(name, self.inventory, self.cancel) as peer:
            yield peer

    def api_key(self) -> Secret | None:
        """The key that the server wants, where the profile sets one."""
        reference = self.target.profile.secrets.get("VLLM_API_KEY")
        return None if reference is None else self.secret(reference)


def kernel_wheel() -> Path:
    """The glm5-kernel wheel that ships with this program or was built from this checkout."""
    from glm5_deploy import kernel_wheel as wheels
    from glm5_deploy.run.local import cache_folder

    return wheels.kernel_wheel(cache_folder())


def manifest(target: Target) -> Manifest | None:
    """The manifest that the profile asks for, with digests of unchanged files remembered."""
    from glm5_deploy.run.local import cache_folder
    from glm5_deploy.stages.manifest import wanted_manifest

    model = target.profile.model
    cache = cache_folder() / "digests.json"
    return wanted_manifest(model.source, model.manifest, cache, model.manifest_sha256)


Work = Callable[[Job], "HostOutcome"]


@dataclass(frozen=True)
class Fleet:
    """The hosts of one command and how they are worked on."""

    command: str
    targets: Sequence[Target]
    inventory: Path | None = None
    json: bool = False
    verbose: int = 0
    forks: int = 10
    serial: str | None = None
    max_failures: int = 0

    def run(self, work: Work) -> Report:
        """Work on every host and return what came of it."""
        from glm5_deploy.cli.options import base_folder, connect
        from glm5_deploy.report.outcome import Report
        from glm5_deploy.report.screen import Screen
        from glm5_deploy.run.cancel import Cancel
        from glm5_deploy.run.fanout import fan_out

        cancel, base = Cancel(), base_folder(self.inventory)
        names = [target.name for target in self.targets]
        quiet = self.json and not self.verbose
        with Screen(names, command=self.command, verbose=self.verbose > 0, quiet=quiet) as screen:

            def one(target: Target) -> HostOutcome:
                with closing(connect(target, self.inventory)) as host:
                    cancel.on_stop(host.abandon)
                    outcome = work(Job(target, host, screen, cancel, base, self.inventory))
                    return replace(outcome, data={**outcome.data, "round_trips": host.round_trips})

            outcomes = fan_out(
                self.targets, one, screen, cancel,
                forks=self.forks, serial=self.serial, max_failures=self.max_failures,
            )  # fmt: skip
        return Report(self.command, outcomes)


def finish(report: Report, *, json: bool, checks: bool = False) -> None:
    """Print a report and leave with its exit code."""
    from glm5_deploy.report.tables import print_report

    print_report(report, json, checks=checks)
    raise typer.Exit(int(report.exit_code))


def keep_record(report: Report, seconds: float) -> None:
    """Note a command that could change hosts in this machine's audit log."""
    from glm5_deploy.run.local import audit

    hosts = {
        outcome.host: {"status": outcome.status, "release": outcome.release}
        for outcome in report.hosts
    }
    with kept_here():
        audit(report.command, hosts, seconds, int(report.exit_code))


@contextmanager
def kept_here() -> Iterator[None]:
    """A note that cannot be kept here must not hide what was done to hosts."""
    try:
        yield
    except OSError as error:
        typer.echo(f"note: this run is not remembered here: {error}", err=True)
