"""``smoke``: prove that running servers answer correctly."""

from __future__ import annotations

from pathlib import Path
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
from glm5_deploy.cli.runner import Fleet, Job, finish

if TYPE_CHECKING:
    from glm5_deploy.report.outcome import HostOutcome

JunitOption = Annotated[
    Path | None, typer.Option("--junit", help="Write the rows to this file as JUnit XML too.")
]


def smoke(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    junit: JunitOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Ask running servers everything that proves them: answers, streams, keys, backend, speed.

    Nothing is changed. Example: glm5-deploy smoke --host bw1 --junit smoke.xml
    """
    if junit is not None:
        _check_folder(junit)
    targets = selection(inventory, host, group, profile)
    report = Fleet("smoke", targets, inventory, json, verbose, forks).run(_prove)
    if junit is not None:
        _write(junit, report.hosts)
    finish(report, json=json, checks=True)


def _check_folder(path: Path) -> None:
    """Say before the test, not after it, that its rows could not be written."""
    from glm5_deploy.errors import UsageError

    if not path.parent.is_dir():
        raise UsageError(f"--junit {path}: there is no folder {path.parent}", "make it first")


def _prove(job: Job) -> HostOutcome:
    from glm5_deploy.errors import ExitCode
    from glm5_deploy.report.events import WithoutChecks
    from glm5_deploy.report.outcome import ErrorReport, HostOutcome
    from glm5_deploy.smoke.run import run_smoke

    job.events.stage(job.target.name, "smoke")
    # The table at the end shows every row: shown as they come they would stand there twice.
    listener = WithoutChecks(job.events)
    rows = run_smoke(job.host, job.target, listener, api_key=job.api_key())
    failed = [row.name for row in rows if row.status == "failed"]
    if not failed:
        return HostOutcome(job.target.name, "unchanged", checks=rows)
    error = ErrorReport(f"failed: {', '.join(failed)}", None, ExitCode.SMOKE_FAILED)
    return HostOutcome(job.target.name, "failed", checks=rows, error=error)


def _write(path: Path, outcomes: tuple[HostOutcome, ...]) -> None:
    from glm5_deploy.errors import UsageError
    from glm5_deploy.smoke.junit import write_junit

    try:
        write_junit(path, outcomes)
    except OSError as error:
        raise UsageError(f"--junit {path}: {error.strerror}") from error


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(smoke)
