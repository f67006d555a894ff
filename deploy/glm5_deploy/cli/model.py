"""``model verify``, ``sync`` and ``inspect``: the model's files, without touching the server."""

from __future__ import annotations

import json as json_module
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm5_deploy.cli.help import Group
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
    from glm5_deploy.report.outcome import HostOutcome, Report
    from glm5_deploy.run.model import ModelRun


def verify(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Read every file of the model on hosts and compare it with its SHA-256.

    Where there is no manifest yet, one is made of what lies there. What is printed at the end is
    the manifest's own hash: as `model.manifest_sha256` in the profile it signs these files.

    Example: glm5-deploy model verify --host bw1
    """
    fleet = Fleet(
        "model verify", selection(inventory, host, group, profile), inventory, json, verbose, forks
    )
    _run(fleet, lambda job: _work(job).verify())


def sync(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Compare contents, or fetch anew, whatever is there.")
    ] = False,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Bring the model's files to hosts, from where the profile says, and verify them.

    The server is left as it is: `up` does the same and then serves them.

    Example: glm5-deploy model sync --group blackwell
    """
    fleet = Fleet(
        "model sync", selection(inventory, host, group, profile), inventory, json, verbose, forks
    )
    _run(fleet, lambda job: _work(job).sync(again=again))


def inspect(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Say what a GGUF model holds and what GPUs need for it, from its headers alone.

    They are read where the files are now: in `model.source`, on the host, or on the host they come
    from. Exit code 1 means that the model cannot be loaded.

    Example: glm5-deploy model inspect --host bw1
    """
    fleet = Fleet(
        "model inspect", selection(inventory, host, group, profile), inventory, json, verbose, forks
    )
    texts: dict[str, str] = {}

    def work(job: Job) -> HostOutcome:
        text, outcome = _inspect(job)
        texts[job.target.name] = text
        return outcome

    report = fleet.run(work)
    if not json:
        for outcome in report.hosts:
            if texts.get(outcome.host):
                typer.echo(f"{outcome.host}\n{texts[outcome.host]}\n")
    finish(report, json=json)


def _work(job: Job) -> ModelRun:
    from glm5_deploy.run.model import ModelRun

    return ModelRun(job.host, job.desired(), job.events, job.cancel, job.peer)


def _run(fleet: Fleet, work: Any) -> None:  # noqa: ANN401  # runner.Work, known while checking alone
    started = time.monotonic()
    report = fleet.run(work)
    keep_record(report, time.monotonic() - started)
    if not fleet.json:
        _show(report)
    finish(report, json=fleet.json)


def _show(report: Report) -> None:
    for outcome in report.hosts:
        data = outcome.data
        if outcome.error is None and data.get("manifest_sha256"):
            size = data["bytes"] / 1e9
            files = f"{data['files']} file{'' if data['files'] == 1 else 's'}"
            typer.echo(f"{outcome.host}: {files}, {size:.1f} GB in {data['folder']}")
            typer.echo(f"{outcome.host}: manifest_sha256: {data['manifest_sha256']}")


def _inspect(job: Job) -> tuple[str, HostOutcome]:
    from glm5_deploy.kernel_package import require_kernel_package
    from glm5_deploy.memory.check import NotPlannedError, model_place
    from glm5_deploy.memory.header import inspect_place
    from glm5_deploy.report.outcome import ErrorReport, HostOutcome

    require_kernel_package()
    from glm5_kernel.gguf.inspect import as_json, as_text
    from glm5_kernel.gguf.tables import terminal_width

    try:
        with model_place(job.host, job.target, job.peer) as place:
            found = inspect_place(place)
    except NotPlannedError as missing:
        hint = "model.serve names the file; `glm5-deploy model sync` brings it"
        error = ErrorReport(missing.message, missing.hint or hint)
        return "", HostOutcome(job.target.name, "failed", error=error)
    document = json_module.loads(json_module.dumps(as_json(found), default=str))
    problem = ErrorReport("; ".join(found.problems)) if found.problems else None
    outcome = HostOutcome(
        job.target.name,
        "failed" if found.problems else "unchanged",
        error=problem,
        data={"model": document},
    )
    return as_text(found, terminal_width()), outcome


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(
        cls=Group,
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Bring, verify or look at a model's files; the server is left alone.",
    )
    group.command()(verify)
    group.command()(sync)
    group.command()(inspect)
    app.add_typer(group, name="model")
