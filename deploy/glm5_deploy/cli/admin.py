"""``unlock`` and ``audit``."""

from __future__ import annotations

import json as json_module
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
    from glm5_deploy.report.outcome import HostOutcome

LimitOption = Annotated[int, typer.Option("-n", "--lines", min=1, help="How many entries.")]
LocalOption = Annotated[bool, typer.Option("--local", help="This machine's log, not the hosts'.")]

_TAIL = 'if [ -e "$1" ]; then tail -n "$2" -- "$1"; fi'


def unlock(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Break the lock of hosts, whoever holds it, and say whose it was.

    Example: glm5-deploy unlock --host bw1
    """
    targets = selection(inventory, host, group)
    started = time.monotonic()
    report = Fleet("unlock", targets, inventory, json, verbose, forks).run(_unlock)
    keep_record(report, time.monotonic() - started)
    if not json:
        for outcome in report.hosts:
            held = outcome.data.get("held_by")
            if outcome.error is None:
                typer.echo(
                    f"{outcome.host}: {f'was locked by {held}' if held else 'was not locked'}"
                )
    finish(report, json=json)


def _unlock(job: Job) -> HostOutcome:
    from glm5_deploy.report.outcome import ChangeReport, HostOutcome
    from glm5_deploy.run.lock import break_lock
    from glm5_deploy.stages.observed import Paths

    paths = Paths.of(job.target)
    holder = break_lock(job.host, paths.state)
    if holder is None:
        return HostOutcome(job.target.name, "unchanged", data={"held_by": None})
    change = ChangeReport("lock", "remove", str(paths.state / "lock"))
    return HostOutcome(job.target.name, "changed", (change,), data={"held_by": str(holder)})


def audit(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    lines: LimitOption = 20,
    local: LocalOption = False,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show what was done to hosts, when and by whom: each host's own log, or this machine's.

    Example: glm5-deploy audit --host bw1 -n 50
    """
    if local:
        from glm5_deploy.run.local import read_audit

        _print_entries("here", read_audit(lines), json=json)
        return
    targets = selection(inventory, host, group)

    def work(job: Job) -> HostOutcome:
        return _read(job, lines)

    report = Fleet("audit", targets, inventory, json, verbose, forks).run(work)
    if not json:
        for outcome in report.hosts:
            if "audit" in outcome.data:
                _print_entries(outcome.host, outcome.data["audit"], json=False)
    finish(report, json=json)


def _read(job: Job, lines: int) -> HostOutcome:
    from glm5_deploy.hosts.command import script
    from glm5_deploy.report.outcome import HostOutcome
    from glm5_deploy.run.local import parse_audit
    from glm5_deploy.stages.observed import Paths

    path = Paths.of(job.target).state / "audit.jsonl"
    result = job.host.run(script(_TAIL, path, lines), sudo=True)
    entries = parse_audit(result.stdout.splitlines())
    return HostOutcome(job.target.name, "unchanged", data={"audit": entries})


def _print_entries(name: str, entries: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        typer.echo(json_module.dumps(entries, indent=2))
        return
    if not entries:
        typer.echo(f"{name}  no entries: nothing was done yet, or the log was removed since")
    for entry in entries:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.get("at", 0)))
        rest = " ".join(
            f"{key}={_shown(value)}"
            for key, value in entry.items()
            if key not in {"at", "action", "command"} and value is not None
        )
        typer.echo(f"{name}  {at}  {entry.get('action', entry.get('command', '?'))}  {rest}")


def _shown(value: object) -> str:
    """A value on one line; of hosts, what came of each and the release it has."""
    if not isinstance(value, dict):
        return str(value)
    shown = []
    for name, found in value.items():
        fields = found.values() if isinstance(found, dict) else [found]
        shown.append(":".join([str(name), *(str(field) for field in fields if field is not None)]))
    return ",".join(shown)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(unlock)
    app.command()(audit)
