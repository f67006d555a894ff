"""``up``, and ``plan``, which is ``up --check --diff``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
    inventory_key,
    selection,
)
from glm5_deploy.cli.runner import Fleet, Job, finish, keep_record, kept_here

if TYPE_CHECKING:
    from glm5_deploy.config.models import Target
    from glm5_deploy.report.outcome import HostOutcome, Report
    from glm5_deploy.run.session import HostRun, Options

CheckOption = Annotated[
    bool, typer.Option("--check", help="Show what would change; change nothing.")
]
DiffOption = Annotated[bool, typer.Option("--diff", help="With --check: show the files' diffs.")]
SmokeOption = Annotated[
    bool, typer.Option("--smoke", help="Run the whole smoke test even where nothing changed.")
]
SerialOption = Annotated[
    str | None, typer.Option("--serial", help="Hosts at a time: a number or a percentage.")
]
MaxFailuresOption = Annotated[
    int, typer.Option("--max-failures", min=0, help="Go on after so many hosts have failed.")
]
RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Only the hosts that failed last time.")
]
KeepOption = Annotated[
    int,
    typer.Option("--keep-releases", min=0, help="Old releases to keep beside the previous one."),
]


def up(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    check: CheckOption = False,
    diff: DiffOption = False,
    smoke: SmokeOption = False,
    forks: ForksOption = 10,
    serial: SerialOption = None,
    max_failures: MaxFailuresOption = 0,
    retry_failed: RetryOption = False,
    keep_releases: KeepOption = 3,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Bring hosts to what the inventory says: install, switch, wait, prove; revert what fails.

    Running it again changes only what differs. Example: glm5-deploy up --host bw1
    """
    from glm5_deploy.errors import UsageError
    from glm5_deploy.run.session import Options

    if diff and not check:
        raise UsageError("--diff goes with --check", "glm5-deploy plan does both")

    targets = selection(inventory, host, group, profile)
    if retry_failed:
        targets = _failed_last_time(targets, inventory_key(inventory))
    fleet = Fleet(
        "plan" if check else "up", targets, inventory, json, verbose, forks, serial, max_failures
    )
    options = Options(check=check, smoke=smoke, keep_releases=keep_releases)
    report, runs, seconds = _run(fleet, options)
    if check:
        _show_plan(report, runs, diff=diff, json=json)
    else:
        keep_record(report, seconds)
        _remember(report, inventory_key(inventory))
        _show_addresses(report, targets, json=json)
    finish(report, json=json)


def plan(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show instead how a GGUF model fills the GPUs.")
    ] = False,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show what `up` would change, with the files' diffs; change nothing.

    --memory reads the model's header where the files are now, and needs nothing installed; exit
    code 1 means that the model does not fit.

    Example: glm5-deploy plan --group blackwell
    """
    if memory:
        from glm5_deploy.cli.memory import show_memory

        targets = selection(inventory, host, group, profile)
        show_memory(Fleet("plan", targets, inventory, json, verbose, forks))
        return
    up(
        inventory, host, group, profile,
        check=True, diff=True, forks=forks, json=json, verbose=verbose,
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(up)
    app.command()(plan)


def _run(fleet: Fleet, options: Options) -> tuple[Report, dict[str, HostRun], float]:
    from glm5_deploy.run.session import HostRun

    runs: dict[str, HostRun] = {}

    def work(job: Job) -> HostOutcome:
        desired = job.desired()
        run = HostRun(
            job.host, desired, job.api_key(), job.events, job.cancel, options, job.peer
        )  # fmt: skip
        runs[job.target.name] = run
        return run.up()

    started = time.monotonic()
    report = fleet.run(work)
    return report, runs, time.monotonic() - started


def _failed_last_time(targets: Sequence[Target], key: str) -> list[Target]:
    from glm5_deploy.run.local import failed_hosts

    names = failed_hosts(key)
    chosen = [target for target in targets if target.name in names]
    if not chosen:
        typer.echo("no host failed last time: nothing to retry", err=True)
    return chosen


def _remember(report: Report, key: str) -> None:
    from glm5_deploy.run.local import remember_outcomes

    with kept_here():
        remember_outcomes(key, {outcome.host: outcome.status for outcome in report.hosts})


def _show_plan(report: Report, runs: Mapping[str, HostRun], *, diff: bool, json: bool) -> None:
    from glm5_deploy.report.tables import make_console, render_plan

    if json:
        return
    made = [outcome.host for outcome in report.hosts if outcome.status in {"changed", "unchanged"}]
    plans = {name: runs[name].changes for name in made}
    render_plan(make_console(), plans, diff)


def _show_addresses(report: Report, targets: Sequence[Target], *, json: bool) -> None:
    """Where each server is, and a command that works from here."""
    good = {outcome.host for outcome in report.hosts if outcome.status in {"changed", "unchanged"}}
    if json:
        return
    from glm5_deploy.report.address import usage_lines

    for target in targets:
        if target.name in good:
            for line in usage_lines(target):
                typer.echo(line, err=True)
