"""``status``: how the servers are, once or for as long as one watches."""

from __future__ import annotations

import json as json_module
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
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
    connect,
    selection,
)

if TYPE_CHECKING:
    from rich.console import Group

    from glm5_deploy.config.models import Target
    from glm5_deploy.hosts.host import Host
    from glm5_deploy.report.outcome import HostOutcome
    from glm5_deploy.status.table import Row

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.5, help="Seconds between looks, with --watch.")
]


def status(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    watch: WatchOption = False,
    interval: IntervalOption = 2.0,
    forks: ForksOption = 10,
    json: JsonOption = False,
) -> None:
    """Show each server's release, unit, uptime, health, load and GPU memory.

    Exit code 0 where all are well, 1 where a server is not, 3 where a host is away.
    Example: glm5-deploy status --watch
    """
    targets = selection(inventory, host, group, profile)
    if watch:
        Watch(targets, inventory, interval, json).run()
    rows = _all(targets, inventory, forks)
    _show(rows, json=json)


def _all(targets: Sequence[Target], inventory: Path | None, forks: int) -> list[Row]:
    from concurrent.futures import ThreadPoolExecutor

    def one(target: Target) -> Row:
        with closing(connect(target, inventory)) as host:
            return Looker(host, target).look()

    with ThreadPoolExecutor(max(1, min(forks, len(targets)))) as pool:
        return list(pool.map(one, targets))


def _show(rows: list[Row], *, json: bool) -> None:
    from glm5_deploy.report.outcome import Report
    from glm5_deploy.report.tables import make_console, print_errors
    from glm5_deploy.status.table import status_table

    outcomes = tuple(outcome for outcome, _ in rows)
    report = Report("status", outcomes)
    if json:
        print(json_module.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        console = make_console()
        console.print(status_table(rows, console.width))
        print_errors(console, outcomes)
    raise typer.Exit(int(report.exit_code))


@dataclass
class Looker:
    """Looks at one host again and again; keeps the last sample for the rate."""

    host: Host
    target: Target
    last: Row | None = None

    def look(self) -> Row:
        """How the server is now; a host that is away is a row as well."""
        from glm5_deploy.errors import Glm5Error, UnreachableError
        from glm5_deploy.report.outcome import ErrorReport, HostOutcome
        from glm5_deploy.status.probe import look, outcome, unreachable

        name, started = self.target.name, time.monotonic()
        before = self.last[1].load if self.last and self.last[1] else None
        try:
            snapshot = look(self.host, self.target, before)
            self.last = outcome(name, snapshot, time.monotonic() - started), snapshot
        except UnreachableError as error:
            self.last = unreachable(name, error.message, error.hint), None
        except Glm5Error as error:
            report = ErrorReport(error.message, error.hint, error.exit_code)
            self.last = HostOutcome(name, "failed", error=report, data={"ok": False}), None
        return self.last


@dataclass
class Watch:
    """Every host is looked at by its own thread, so that one that hangs holds up no other."""

    targets: Sequence[Target]
    inventory: Path | None
    interval: float
    json: bool
    _rows: dict[str, Row] = field(default_factory=dict)
    _news: queue.Queue[Row] = field(default_factory=queue.Queue)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Show until Ctrl-C.

        Raises:
            KeyboardInterrupt: the way out.
        """
        hosts = [connect(target, self.inventory) for target in self.targets]
        for host, target in zip(hosts, self.targets, strict=True):
            looker = Looker(host, target)
            threading.Thread(target=self._work, args=(looker,), daemon=True).start()
        try:
            self._print_lines() if self.json else self._draw()
        finally:
            self._stop.set()
            for host in hosts:
                threading.Thread(target=host.close, daemon=True).start()

    def _work(self, looker: Looker) -> None:
        while not self._stop.is_set():
            self._news.put(looker.look())
            self._stop.wait(self.interval)

    def _print_lines(self) -> None:
        while True:
            outcome, _ = self._news.get()
            line = {"host": outcome.host, "time": time.time()} | outcome.to_json()
            print(json_module.dumps(line, ensure_ascii=False), flush=True)

    def _draw(self) -> None:
        from rich.live import Live

        from glm5_deploy.report.tables import make_console

        console = make_console()
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                outcome, snapshot = self._news.get()
                self._rows[outcome.host] = outcome, snapshot
                frame = self._frame(console.width)
                live.update(frame, refresh=True)
                if not console.is_terminal:
                    console.print(frame)

    def _frame(self, width: int) -> Group:
        from rich.console import Group
        from rich.text import Text

        from glm5_deploy.report.tables import error_text
        from glm5_deploy.status.table import status_table

        names = [target.name for target in self.targets]
        rows = [self._rows[name] for name in names if name in self._rows]
        errors: list[HostOutcome] = [outcome for outcome, _ in rows if outcome.error]
        waiting = len(names) - len(rows)
        more = [Text(f"waiting for {waiting} hosts", style="dim")] if waiting else []
        return Group(status_table(rows, width), *(error_text(outcome) for outcome in errors), *more)


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(status)
