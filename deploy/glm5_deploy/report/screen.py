"""What a person sees while a run works: a row a host on a terminal, plain lines elsewhere.

All of it goes to stderr.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from glm5_deploy.report.outcome import ChangeReport, Check, HostOutcome
from glm5_deploy.report.text import colour, one_line, seconds
from glm5_deploy.report.wording import prints_all, shown_status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.spinner import Spinner

_NEW_TEXT_INTERVAL = 1.0
_SAME_TEXT_INTERVAL = 5.0
_FIGURES = re.compile(r"[0-9][0-9.,:%/]*")
_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "warning": ("!", "yellow"),
    "skipped": ("–", "dim"),
}
_STATUS_STYLES = {
    "unchanged": "green",
    "changed": "yellow",
    "skipped": "dim",
    "interrupted": "magenta",
}


def status_style(status: str) -> str:
    """The colour of a host's status; what is not well is red."""
    return _STATUS_STYLES.get(status, "red")


@dataclass
class Row:
    """Where a host stands."""

    stage: str = ""
    text: str = ""
    fraction: float | None = None
    started: float = field(default_factory=time.monotonic)
    outcome: HostOutcome | None = None
    printed: float = 0.0
    printed_text: str = ""


class Screen:
    """Events for people; use it as a context manager. Thread-safe.

    Args:
        hosts: their order in the table; others follow as they appear.
        command: whose words are used for what came of a host.
        verbose: show every change, passed check and stage as a line of its own.
        quiet: show notes and failures alone.
        stream: for tests; default stderr.
        live: force the live table on or off; default: on a terminal that is not dumb.
    """

    def __init__(
        self,
        hosts: Sequence[str] = (),
        *,
        command: str = "",
        verbose: bool = False,
        quiet: bool = False,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verbose, self._quiet, self._clock = verbose, quiet, clock
        self._command = command
        self._stream = sys.stderr if stream is None else stream
        dumb = os.environ.get("TERM") == "dumb"
        wanted = self._stream.isatty() and not dumb if live is None else live
        self._use_live = wanted and not quiet
        self._lock = threading.RLock()
        self._rows = {host: Row(started=clock()) for host in hosts}
        self._console: Console | None = None
        self._live: Live | None = None
        self._spinner: Spinner | None = None

    # --- context ---

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the live table away; lines stay. Safe to call twice."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    # --- events ---

    def stage(self, host: str, stage: str) -> None:
        with self._lock:
            row = self._row(host)
            if self._verbose and stage != row.stage:
                self._print(host, stage, f"begins after {seconds(self._clock() - row.started)}", "")
            row.stage, row.text, row.fraction = stage, "", None
            self._refresh()

    def change(self, host: str, change: ChangeReport) -> None:
        text = f"{change.action} {one_line(change.target)}"
        with self._lock:
            if not self._quiet:
                self._print(host, change.stage, text, "yellow", mark="±")

    def progress(self, host: str, text: str, fraction: float | None = None) -> None:
        with self._lock:
            row = self._row(host)
            row.text, row.fraction = one_line(text), fraction
            if not self._use_live and not self._quiet:
                self._plain_progress(host, row)
            self._refresh()

    def note(self, host: str, text: str) -> None:
        with self._lock:
            stage = self._row(host).stage if host else ""
            self._print(host, stage, one_line(text), "yellow", mark="!")

    def check(self, host: str, check: Check) -> None:
        mark, style = _MARKS[check.status]
        shown = self._verbose or check.status in {"failed", "warning"}
        with self._lock:
            if shown and not (self._quiet and check.status != "failed"):
                text = f"{check.name}: {one_line(check.detail)}" if check.detail else check.name
                self._print(host, self._row(host).stage, text, style, mark=mark)

    def finished(self, outcome: HostOutcome) -> None:
        with self._lock:
            row = self._row(outcome.host)
            row.outcome, row.text, row.fraction = outcome, "", None
            silent = self._quiet or (prints_all(self._command) and outcome.error is None)
            if (self._verbose or not self._use_live) and not silent:
                text = f"{shown_status(self._command, outcome)} in {seconds(outcome.seconds)}"
                trips = outcome.data.get("round_trips") if self._verbose else None
                text += f", {trips} round trips" if trips is not None else ""
                self._print(outcome.host, "", text, status_style(outcome.status))
            self._refresh()

    # --- drawing ---

    def _row(self, host: str) -> Row:
        return self._rows.setdefault(host, Row(started=self._clock()))

    def _plain_progress(self, host: str, row: Row) -> None:
        """A line where stage or text is new, else now and then; figures alone are no news."""
        now, name = self._clock(), f"{row.stage} {_FIGURES.sub('#', row.text)}"
        same = name == row.printed_text
        interval = _SAME_TEXT_INTERVAL if same else _NEW_TEXT_INTERVAL
        first = not row.printed_text.startswith(f"{row.stage} ")
        if not first and now - row.printed < interval:
            return
        row.printed, row.printed_text = now, name
        done = f" {row.fraction:.0%}" if row.fraction else ""
        self._print(host, row.stage, f"{row.text}{done}", "")

    def _get_console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=self._stream, markup=False, emoji=False, highlight=False,
                force_terminal=True if self._use_live else None,
            )  # fmt: skip
        return self._console

    def _print(self, host: str, stage: str, text: str, style: str, mark: str = " ") -> None:
        from rich.table import Table
        from rich.text import Text

        width = max((len(one_line(name)) for name in (*self._rows, host)), default=0)
        head = Text(f"{one_line(host):<{width}}", style=colour(host))
        head.append(f"  {stage:<9} ", style="dim")
        head.append(mark, style=style)
        body = Text(text, style=style if mark == "✗" else "")
        if self._use_live:
            table = Table.grid(padding=(0, 1, 0, 0))
            table.add_row(head, body)
            self._get_console().print(table)
        else:
            self._get_console().print(Text(" ").join([head, body]), soft_wrap=True)

    def _refresh(self) -> None:
        if not self._use_live:
            return
        if self._live is None:
            from rich.live import Live
            from rich.spinner import Spinner

            self._spinner = Spinner("dots")
            self._live = Live(
                get_renderable=self.render, console=self._get_console(), transient=True,
                refresh_per_second=8, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()

    def render(self) -> RenderableType:
        """The live table: host, stage, elapsed, bar, detail; one line a host while they fit."""
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for ratio in (None, None, None, None, 1):
            table.add_column(ratio=ratio, no_wrap=True, overflow="ellipsis")
        with self._lock:
            rows = list(self._rows.items())
        room = max(self._get_console().height - 2, 1)
        if len(rows) > room:
            rows = [pair for pair in rows if pair[1].outcome is None][:room]
        for host, row in rows:
            table.add_row(*self._cells(host, row))
        hidden = len(self._rows) - len(rows)
        return Group(table, f"and {hidden} hosts more") if hidden else table

    def _cells(self, host: str, row: Row) -> list[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        name = Text(one_line(host), style=colour(host))
        if row.outcome is not None:
            word = shown_status(self._command, row.outcome)
            status = Text(word, style=status_style(row.outcome.status))
            error = row.outcome.error
            detail = "" if error is None else one_line(error.message)
            return [name, status, Text(seconds(row.outcome.seconds)), Text(""), Text(detail)]
        bar: RenderableType = self._spinner or ""
        if row.fraction is not None:
            bar = ProgressBar(total=1.0, completed=min(max(row.fraction, 0.0), 1.0), width=16)
        percent = "" if row.fraction is None else f"{row.fraction:.0%}  "
        elapsed = seconds(self._clock() - row.started)
        return [name, Text(row.stage), Text(elapsed, "dim"), bar, Text(f"{percent}{row.text}")]
