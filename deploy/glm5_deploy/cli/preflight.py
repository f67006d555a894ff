"""``preflight``: would a deployment work here?"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from glm5_deploy.cli.runner import Fleet, Job, finish

if TYPE_CHECKING:
    from glm5_deploy.report.outcome import HostOutcome


def preflight(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Look at hosts and say what would stand in the way of `up`; change nothing.

    Example: glm5-deploy preflight --group blackwell
    """
    targets = selection(inventory, host, group, profile)
    report = Fleet("preflight", targets, inventory, json, verbose, forks).run(_look)
    finish(report, json=json, checks=True)


def _look(job: Job) -> HostOutcome:
    from glm5_deploy.memory.check import rows as memory
    from glm5_deploy.package_index import rows as index
    from glm5_deploy.report.outcome import ErrorReport, HostOutcome
    from glm5_deploy.stages.observed import observe
    from glm5_deploy.stages.preflight import preflight as examine

    desired = job.desired()
    observed = observe(job.host, job.target)
    rows = (
        *examine(desired, observed),
        *index(job.host, desired, observed),
        *memory(job.host, desired, observed, job.peer),
    )
    failed = [row.name for row in rows if row.status == "failed"]
    error = ErrorReport(f"not ready: {', '.join(failed)}") if failed else None
    return HostOutcome(
        job.target.name,
        "failed" if failed else "unchanged",
        release=observed.deployment.current,
        checks=rows,
        error=error,
    )


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(preflight)
