"""``restart`` and ``down``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from glm5_deploy.cli.options import (
    ForksOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JsonOption,
    ProfileOption,
    VerboseOption,
    selection,
)
from glm5_deploy.cli.runner import Fleet, Job, finish, keep_record

if TYPE_CHECKING:
    from glm5_deploy.report.outcome import HostOutcome

SmokeOption = Annotated[bool, typer.Option("--smoke", help="Smoke-test once it answers.")]
PurgeOption = Annotated[
    bool, typer.Option("--purge", help="Remove units, releases, environments and caches too.")
]
ModelsOption = Annotated[bool, typer.Option("--models", help="With --purge: the models as well.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def restart(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    smoke: SmokeOption = False,
    forks: ForksOption = 10,
    serial: Annotated[str | None, typer.Option("--serial", help="Hosts at a time.")] = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Restart the service and wait until it answers.

    Example: glm5-deploy restart --group blackwell --serial 1
    """

    def work(job: Job) -> HostOutcome:
        from glm5_deploy.run.maintenance import Maintenance

        run = Maintenance(job.host, job.desired(), job.api_key(), job.events, job.cancel)
        return run.restart(smoke=smoke)

    started = time.monotonic()
    targets = selection(inventory, host, group, profile)
    report = Fleet("restart", targets, inventory, json, verbose, forks, serial).run(work)
    keep_record(report, time.monotonic() - started)
    finish(report, json=json)


def down(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    purge: PurgeOption = False,
    models: ModelsOption = False,
    yes: YesOption = False,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Stop and disable the service; `up` starts it again.

    Example: glm5-deploy down --host bw1 --purge
    """
    from glm5_deploy.errors import UsageError

    if models and not purge:
        raise UsageError("--models goes with --purge", "glm5-deploy down --purge --models")
    targets = selection(inventory, host, group, profile)
    if purge and not yes:
        names = ", ".join(target.name for target in targets)
        what = "everything, the models included," if models else "everything but the models"
        try:
            typer.confirm(f"remove {what} of {names}?", abort=True, err=True)
        except typer.Abort as abort:
            if sys.stdin.isatty():
                raise
            raise UsageError("--purge asks, and there is nobody to answer", "add --yes") from abort

    def work(job: Job) -> HostOutcome:
        from glm5_deploy.run.maintenance import take_down

        return take_down(job.host, job.target, job.events, purge=purge, models=models)

    started = time.monotonic()
    report = Fleet("down", targets, inventory, json, verbose, forks).run(work)
    keep_record(report, time.monotonic() - started)
    finish(report, json=json)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(restart)
    app.command()(down)
