"""Snapshots as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from glm5_deploy.report.columns import Fit, fitted_table
from glm5_deploy.report.outcome import HostOutcome
from glm5_deploy.report.text import age, colour, one_line
from glm5_deploy.status.probe import Gpu, Snapshot

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = tuple[HostOutcome, Snapshot | None]


_FIT = Fit(
    {"model": 8, "host": 14, "release": 7},
    heads=frozenset({"release"}),
    drop=("model", "tok/s", "up"),
)


def status_table(rows: Iterable[Row], width: int) -> Table:
    """One row a host; GPU memory is added up over its GPUs.

    Args:
        width: of the terminal, in characters. Columns that say nothing are left out.
    """
    from rich.text import Text

    shown: list[dict[str, Text]] = []
    for outcome, snapshot in rows:
        host = {"host": Text(one_line(outcome.host), style=colour(outcome.host))}
        if snapshot is None:
            shown.append(host | {"unit": Text(outcome.status, style="red")})
        else:
            shown.append(host | _cells(snapshot))
    always = ("host", "model", "release", "unit", "up", "health")
    names = [*always, *(n for n in ("req", "tok/s", "GPU GiB") if any(n in row for row in shown))]
    return fitted_table(shown, names, _FIT, width)


def _cells(snapshot: Snapshot) -> dict[str, Text]:
    from rich.text import Text

    load, unit = snapshot.load, snapshot.active if snapshot.known else "none"
    health = "–" if snapshot.health is None else str(snapshot.health)
    restarts = f" ×{snapshot.restarts}" if snapshot.restarts else ""
    cells = {
        "model": Text(one_line(snapshot.model)),
        "release": Text(one_line(snapshot.release or "–")[:12]),
        "unit": Text(f"{unit}{restarts}", style="green" if snapshot.active == "active" else "red"),
        "up": Text("–" if snapshot.uptime is None else age(snapshot.uptime)),
        "health": Text(health, style="green" if snapshot.health == 200 else "red"),
    }
    if load is not None:
        cells["req"] = Text(f"{load.running}+{load.waiting}")
        cells["tok/s"] = Text("–" if snapshot.rate is None else f"{snapshot.rate:.1f}")
    if snapshot.gpus:
        cells["GPU GiB"] = Text(_memory(snapshot.gpus))
    return cells


def _memory(gpus: Sequence[Gpu]) -> str:
    used, total = (sum(part or 0 for part in parts) for parts in
                   ([gpu.used for gpu in gpus], [gpu.total for gpu in gpus]))  # fmt: skip
    number = f"{len(gpus)}× " if len(gpus) > 1 else ""
    return f"{number}{used / 1024:.0f}/{total / 1024:.0f}"
