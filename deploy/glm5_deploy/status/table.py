"""Snapshots as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from glm5_deploy.report.outcome import HostOutcome
from glm5_deploy.report.text import age, colour, one_line
from glm5_deploy.status.probe import Gpu, Snapshot

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = tuple[HostOutcome, Snapshot | None]


def status_table(rows: Iterable[Row]) -> Table:
    """One row a host; GPU memory is added up over its GPUs."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for name in ("host", "model", "release", "unit", "up", "health", "requests", "tok/s", "GPU"):
        table.add_column(name, overflow="fold", no_wrap=name not in ("host", "model", "GPU"))
    for outcome, snapshot in rows:
        host = Text(one_line(outcome.host), style=colour(outcome.host))
        if snapshot is None:
            table.add_row(host, Text(""), Text(""), Text(outcome.status, style="red"))
        else:
            table.add_row(host, *_cells(snapshot))
    return table


def _cells(snapshot: Snapshot) -> Sequence[Text]:
    from rich.text import Text

    load, unit = snapshot.load, snapshot.active if snapshot.known else "none"
    health = "–" if snapshot.health is None else str(snapshot.health)
    restarts = f" ×{snapshot.restarts}" if snapshot.restarts else ""
    return [
        Text(one_line(snapshot.model)),
        Text(one_line(snapshot.release or "–")[:12]),
        Text(f"{unit}{restarts}", style="green" if snapshot.active == "active" else "red"),
        Text("–" if snapshot.uptime is None else age(snapshot.uptime)),
        Text(health, style="green" if snapshot.health == 200 else "red"),
        Text("–" if load is None else f"{load.running}+{load.waiting}"),
        Text("–" if snapshot.rate is None else f"{snapshot.rate:.1f}"),
        Text(_memory(snapshot.gpus)),
    ]


def _memory(gpus: Sequence[Gpu]) -> str:
    if not gpus:
        return "none"
    used, total = (sum(part or 0 for part in parts) for parts in
                   ([gpu.used for gpu in gpus], [gpu.total for gpu in gpus]))  # fmt: skip
    number = f"{len(gpus)}× " if len(gpus) > 1 else ""
    return f"{number}{used / 1024:.0f}/{total / 1024:.0f} GiB"
