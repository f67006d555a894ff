"""Final tables for people, and the JSON document for programs. Results go to stdout."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from glm5_deploy.report.columns import Fit, fitted_table
from glm5_deploy.report.outcome import Check, HostOutcome, Report
from glm5_deploy.report.screen import status_style
from glm5_deploy.report.text import clean, colour, one_line, seconds
from glm5_deploy.report.wording import change_count, counts_changes, prints_all, shown_status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glm5_deploy.stages.change import Change

_CHECK_STYLES = {"passed": "green", "failed": "red", "warning": "yellow", "skipped": "dim"}
# Commands whose few changes no line of the run has named.
_LISTED = {"down"}
_PAST = {"stop": "stopped", "remove": "removed"}
_OUTCOMES = Fit(
    {"checks": 10, "host": 12, "release": 7},
    wraps=frozenset({"checks"}),
    heads=frozenset({"release"}),
)
_DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def make_console(*, stderr: bool = False) -> Console:
    """A console that reads no markup, emoji codes or highlights into text from hosts."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_report(
    report: Report, json: bool, *, checks: bool = False, console: Console | None = None
) -> None:
    """The end of a command: one JSON document, or the table of outcomes with errors and hints.

    Args:
        checks: show every host's check rows too; failed rows are shown where no error tells them.
    """
    if json:
        print(json_module.dumps(report.to_json(), indent=2, ensure_ascii=False), flush=True)
        return
    console = console or make_console()
    for outcome in report.hosts:
        rows = [c for c in outcome.checks if checks or _untold(outcome, c)]
        if rows:
            print_checks(console, outcome.host, rows)
    if report.hosts and not prints_all(report.command):
        console.print(outcome_table(report, console.width))
    if report.command in _LISTED:
        _print_done(console, report.hosts)
    print_errors(console, report.hosts)


def _print_done(console: Console, outcomes: Iterable[HostOutcome]) -> None:
    from rich.text import Text

    for outcome in outcomes:
        for change in outcome.changes:
            line = Text(f"{one_line(outcome.host)}: ", style=colour(outcome.host))
            line.append(f"{_PAST.get(change.action, change.action)} ", style="yellow")
            line.append(one_line(change.target), style="default")
            console.print(line, soft_wrap=True)


def _untold(outcome: HostOutcome, check: Check) -> bool:
    error = outcome.error
    told = error is not None and f"{check.name}: {check.detail}" in error.message
    return check.status == "failed" and not told


def outcome_table(report: Report, width: int) -> Table:
    """Host, status, time, and what applies of changes, checks and release.

    Args:
        width: of the terminal, in characters.
    """
    from rich.text import Text

    columns: dict[str, Callable[[HostOutcome], Text]] = {
        "host": lambda o: Text(one_line(o.host), style=colour(o.host)),
        "status": lambda o: _status(report.command, o),
    }
    if counts_changes(report.command):
        columns["changes"] = lambda o: Text(change_count(report.command, o))
    if any(outcome.checks for outcome in report.hosts):
        columns["checks"] = lambda o: Text(_check_counts(o.checks))
    if any(outcome.release for outcome in report.hosts):
        columns["release"] = lambda o: Text(one_line(o.release or "–"))
    columns["time"] = lambda o: Text(seconds(o.seconds))
    rows = [{name: cell(outcome) for name, cell in columns.items()} for outcome in report.hosts]
    return fitted_table(rows, list(columns), _OUTCOMES, width)


def _status(command: str, outcome: HostOutcome) -> Text:
    from rich.text import Text

    return Text(shown_status(command, outcome), style=status_style(outcome.status))


def _check_counts(checks: Sequence[Check]) -> str:
    statuses = [str(check.status) for check in checks]
    counts = ((statuses.count(status), status) for status in _CHECK_STYLES)
    return ", ".join(_counted(number, status) for number, status in counts if number) or "–"


def _counted(number: int, status: str) -> str:
    return _count(number, status) if status == "warning" else f"{number} {status}"


def print_checks(console: Console, host: str, checks: Iterable[Check]) -> None:
    """One row a check; hints stand below the table, unbroken, so that commands can be copied."""
    from rich.text import Text

    table, rows = _check_table(), list(checks)
    for check in rows:
        table.add_row(
            Text(check.name),
            Text(check.status, style=_CHECK_STYLES[check.status]),
            Text(seconds(check.seconds) if check.seconds else "", style="dim"),
            Text(one_line(check.detail)),
        )
    console.print(Text(one_line(host), style=f"bold {colour(host)}"))
    console.print(table)
    hints: dict[str, list[str]] = {}
    for check in rows:
        if check.hint and check.status in {"failed", "warning"}:
            hints.setdefault(one_line(check.hint), []).append(check.name)
    for hint, names in hints.items():
        text = Text(f"  {', '.join(names)} ").append(f"→ {hint}", style="yellow")
        console.print(text, soft_wrap=True)


def render_plan(console: Console, plans: Mapping[str, Sequence[Change]], diff: bool) -> None:
    """What would be done on each host, in order; with ``diff`` the files' unified diffs."""
    from rich.text import Text

    for host, changes in plans.items():
        title = Text(one_line(host), style=f"bold {colour(host)}")
        title.append(f"  {_count(len(changes), 'change')}", style="default")
        if any(change.downtime for change in changes):
            title.append("  the server stops meanwhile", style="yellow")
        console.print(title)
        for change in changes:
            _print_change(console, change)
            if diff and change.diff:
                console.print(diff_text(change.diff))


def diff_text(diff: str) -> Text:
    """A unified diff in colours, made harmless."""
    from rich.text import Text

    text = Text()
    for line in clean(diff).splitlines():
        style = next((style for start, style in _DIFF_STYLES if line.startswith(start)), "dim")
        text.append(f"    {line}\n", style=style)
    return text


def _print_change(console: Console, change: Change) -> None:
    from rich.table import Table
    from rich.text import Text

    what = Text(f"{change.action} ", style="yellow")
    what.append(one_line(change.target), style="default")
    if change.detail:
        what.append(f"  {one_line(change.detail)}", style="dim")
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=11)
    row.add_row(Text(f"  {change.stage}", style="dim"), what)
    console.print(row)


def print_errors(console: Console, outcomes: Iterable[HostOutcome]) -> None:
    """Each host's error and hint; the terminal breaks long lines, so that commands stay whole."""
    for outcome in outcomes:
        if outcome.error is not None:
            console.print(error_text(outcome), soft_wrap=True)


def error_text(outcome: HostOutcome) -> Text:
    """A host's error with its hint; empty where it has none."""
    from rich.text import Text

    if outcome.error is None:
        return Text()
    text = Text(f"{one_line(outcome.host)}: ", style=colour(outcome.host))
    text.append(clean(outcome.error.message).strip(), style="red")
    if outcome.error.hint:
        text.append(f"\n  → {clean(outcome.error.hint).strip()}", style="yellow")
    return text


def _check_table() -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("check", "", "time"):
        table.add_column(name, no_wrap=True)
    table.add_column("", overflow="fold")
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
