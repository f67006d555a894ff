"""``releases`` and ``rollback``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm5_deploy.cli.options import (
    ForksOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JsonOption,
    VerboseOption,
    selection,
)
from glm5_deploy.cli.runner import Fleet, Job, finish, keep_record

if TYPE_CHECKING:
    from glm5_deploy.report.outcome import HostOutcome, Report
    from glm5_deploy.stages.observed import DeploymentFacts

ToOption = Annotated[
    str | None,
    typer.Option("--to", help="A release, or the start of its id; default: the previous."),
]


def releases(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """List the releases on hosts: the current one, the previous, the one that awaits confirmation,
    the one that was taken back last.

    Example: glm5-deploy releases --host bw1
    """
    targets = selection(inventory, host, group)
    report = Fleet("releases", targets, inventory, json, verbose, forks).run(_list)
    if not json:
        _print_releases(report)
    finish(report, json=json)


def _list(job: Job) -> HostOutcome:
    from glm5_deploy.report.outcome import HostOutcome
    from glm5_deploy.stages.observed import observe

    deployed = observe(job.host, job.target).deployment
    rows = [_row(name, deployed) for name in deployed.releases]
    return HostOutcome(
        job.target.name, "unchanged", release=deployed.current, data={"releases": rows}
    )


def _row(name: str, deployed: DeploymentFacts) -> dict[str, Any]:
    pending = deployed.pending or {}
    roles = {
        "current": name == deployed.current,
        "previous": name == deployed.previous,
        "unconfirmed": name == pending.get("release"),
        "reverted": name == (deployed.reverted or {}).get("reverted"),
    }
    return {"id": name, "roles": [role for role, holds in roles.items() if holds]}


def _print_releases(report: Report) -> None:
    for outcome in report.hosts:
        rows = outcome.data.get("releases")
        if rows == []:
            typer.echo(f"{outcome.host}  no releases: `glm5-deploy up` makes one")
        for row in rows or []:
            typer.echo(f"{outcome.host}  {row['id']}  {', '.join(row['roles'])}".rstrip())


def rollback(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    to: ToOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Switch to an earlier release, wait, smoke-test and confirm; a rollback that fails is reverted
    too.

    Example: glm5-deploy rollback --host bw1
    """

    def work(job: Job) -> HostOutcome:
        from glm5_deploy.run.maintenance import Maintenance

        run = Maintenance(job.host, job.desired(), job.api_key(), job.events, job.cancel)
        return run.rollback(to)

    started = time.monotonic()
    targets = selection(inventory, host, group)
    report = Fleet("rollback", targets, inventory, json, verbose, forks).run(work)
    keep_record(report, time.monotonic() - started)
    finish(report, json=json)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(releases)
    app.command()(rollback)
