"""``bench``: how fast running servers are, by vLLM's own benchmark."""

from __future__ import annotations

from dataclasses import replace
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
    from glm5_deploy.bench.plan import Wanted
    from glm5_deploy.bench.result import Results
    from glm5_deploy.report.outcome import HostOutcome, Report

ConcurrencyOption = Annotated[
    str, typer.Option("--concurrency", metavar="N,…", help="Requests at once, one load each.")
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt-tokens",
        metavar="N,…",
        help="Lengths of prompts, one load each; default: 1000,8000 as far as they fit.",
    ),
]
OutputOption = Annotated[
    int,
    typer.Option(
        "--output-tokens", metavar="N", min=2, max=1_000_000, help="Tokens of every answer."
    ),
]
RequestsOption = Annotated[
    int | None,
    typer.Option(
        "--requests",
        metavar="N",
        min=1,
        max=1_000_000,
        help="Requests of each load; default: twice as many as are at once, or as many with long"
        " prompts.",
    ),
]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit",
        metavar="SECONDS",
        min=1,
        max=86_400,
        help="For all loads of a host; what is not done by then is stopped or left out.",
    ),
]


def bench(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    concurrency: ConcurrencyOption = "1,8,64",
    prompt_tokens: PromptOption = None,
    output_tokens: OutputOption = 128,
    requests: RequestsOption = None,
    limit: LimitOption = 900,
    forks: ForksOption = 10,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Measure running servers with vLLM's own benchmark: tokens a second, TTFT, TPOT.

    It runs on the host, beside the server, and loads it: clients get slower meanwhile. Ctrl-C ends
    it there too. Example: glm5-deploy bench --host bw1 --concurrency 1,16 --prompt-tokens 2000
    """
    from glm5_deploy.bench.plan import Wanted, parse_numbers
    from glm5_deploy.bench.result import Results

    prompts = None if prompt_tokens is None else parse_numbers("--prompt-tokens", prompt_tokens)
    at_once = parse_numbers("--concurrency", concurrency)
    wanted = Wanted(at_once, prompts, output_tokens, requests, limit)
    targets = selection(inventory, host, group, profile)
    found = {target.name: Results() for target in targets}

    def work(job: Job) -> HostOutcome:
        return _measure(job, wanted, found[job.target.name])

    report = Fleet("bench", targets, inventory, json, verbose, forks).run(work)
    report = replace(report, hosts=tuple(_whole(each, found[each.host]) for each in report.hosts))
    if not json:
        _show(report, found)
    finish(report, json=json, checks=True)


def _measure(job: Job, wanted: Wanted, results: Results) -> HostOutcome:
    from glm5_deploy.bench.run import BenchRun

    return BenchRun(
        job.host, job.target, job.api_key(), wanted, job.events, job.cancel, results
    ).run()


def _whole(outcome: HostOutcome, results: Results) -> HostOutcome:
    """With what was measured before the host was lost, or Ctrl-C."""
    if not results.loads:
        return outcome
    return replace(outcome, data={**outcome.data, **results.to_json()})


def _show(report: Report, found: dict[str, Results]) -> None:
    from glm5_deploy.bench.table import print_results
    from glm5_deploy.report.tables import make_console

    console = make_console()
    for outcome in report.hosts:
        if found[outcome.host].loads:
            print_results(console, outcome.host, found[outcome.host].loads)


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(bench)
