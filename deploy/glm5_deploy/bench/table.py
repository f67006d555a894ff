"""Results as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glm5_deploy.report.text import colour, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from glm5_deploy.bench.result import Result

_COLUMNS = ("at once", "prompt", "requests", "tokens/s", "in + out", "TTFT", "p99", "TPOT", "p99")
_UNITS = "  tokens/s of answers; in + out: prompts, too; TTFT, TPOT: median, p99, in ms"


def print_results(console: Console, host: str, results: Sequence[Result]) -> None:
    """One row a load, and what the columns are."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        style = "" if result.status == "measured" else "yellow"
        table.add_row(*_cells(result), style=style)
    console.print(Text(one_line(host), style=f"bold {colour(host)}"))
    console.print(table)
    console.print(Text(_UNITS, style="dim"), soft_wrap=True)


def _cells(result: Result) -> list[str]:
    asked = [str(each) for each in (result.concurrency, result.prompt_tokens, result.requests)]
    figures = result.figures
    if figures is None or result.status != "measured":
        # Those of the few requests that were answered look as good as any.
        return [*asked, result.status]
    rates = (figures.tokens_per_second, figures.total_tokens_per_second)
    first, between = figures.ttft, figures.tpot
    return [
        *asked,
        *(f"{rate:.1f}" for rate in rates),
        *(f"{value:.0f}" for value in (first.median, first.p99)),
        *(f"{value:.1f}" for value in (between.median, between.p99)),
    ]
