"""A memory plan for people, and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glm5_deploy.memory.constants import GIB
from glm5_deploy.memory.measured import Measured
from glm5_deploy.memory.plan import MemoryPlan

if TYPE_CHECKING:
    from rich.console import Console


def as_data(made: MemoryPlan) -> dict[str, Any]:
    """Bytes on each GPU, and tokens."""
    return {
        "gpus": made.model.tp,
        "gpu_bytes": made.gpu.usable,
        "limit": made.limit,
        "weights": made.weights,
        "workspace": made.workspace,
        "graphs": made.graphs,
        "other": made.other,
        "kv_cache": made.kv,
        "kv_bytes_per_token": made.model.kv[made.settings.kv_dtype],
        "kv_tokens": made.kv_tokens,
        "context": made.settings.context,
        "longest_context": made.longest,
        "sequences": made.sequences,
        "problems": [{"problem": text, "remedy": remedy} for text, remedy in made.problems],
    }


def rows(made: MemoryPlan) -> Iterator[tuple[str, str, str]]:
    """What takes how much of each GPU, and a remark."""
    settings, model = made.settings, made.model
    yield "GPU", _gib(made.gpu.usable), f"the smallest of {model.tp}"
    yield "vLLM may take", _gib(made.limit), f"gpu-memory-utilization {settings.utilization:g}"
    yield "weights", _gib(made.weights), f"cut among {model.tp}" if model.tp > 1 else "whole"
    batch = f"{settings.batched_tokens} tokens, {settings.sequences} sequences in a batch"
    yield "workspace", _gib(made.workspace), batch
    yield "CUDA graphs", _gib(made.graphs), "none: enforce-eager" if settings.eager else "estimate"
    yield "libraries", _gib(made.other), "estimate"
    each = model.kv[settings.kv_dtype]
    yield "KV cache", _gib(max(made.kv, 0)), f"{each:,} B a token, {settings.kv_dtype}"
    yield (
        "  tokens",
        f"{made.kv_tokens:,}",
        f"{made.sequences:,.1f} requests of {settings.context:,}",
    )
    yield "  longest context", f"{made.longest:,}", f"asked for: {settings.context:,}"
    yield "  most sequences", f"{made.kv_tokens // max(settings.context, 1)}", "of full length"


_MEASURED = {
    "weights": "weights",
    "CUDA graphs": "graphs",
    "KV cache": "kv",
    "  tokens": "kv_tokens",
}


def print_plan(
    host: str, made: MemoryPlan, told: Measured | None = None, console: Console | None = None
) -> None:
    """One table a host; problems come with the report.

    Args:
        told: what the running server says, for a column of its own.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from glm5_deploy.report.tables import make_console
    from glm5_deploy.report.text import colour, one_line

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("on each GPU", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    if told is not None:
        table.add_column("as it runs", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, value, remark in rows(made):
        beside = [] if told is None else [Text(_measured(name, told))]
        table.add_row(Text(name), Text(value), *beside, Text(remark, style="dim"))
    console = console or make_console()
    console.print(Text(one_line(host), style=f"bold {colour(host)}"))
    console.print(table)


def _measured(name: str, told: Measured) -> str:
    found = getattr(told, _MEASURED[name]) if name in _MEASURED else None
    if found is None:
        return ""
    return f"{found:,}" if name == "  tokens" else _gib(found)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
