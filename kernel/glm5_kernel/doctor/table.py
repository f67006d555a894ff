"""The report for people: plain text, aligned."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from glm5_kernel.doctor.report import Check, Gpu, Report

NAMES = {
    "python": "Python",
    "vllm": "vLLM",
    "driver": "NVIDIA driver",
}
"""How people write what the JSON document names otherwise."""
MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "–"}
GIB = 1 << 30


def render(report: Report, width: int = 100) -> str:
    """Sections with aligned columns, no line longer than `width` where words allow it."""
    sections: list[tuple[str, list[tuple[str, ...]]]] = [
        ("versions", [(NAMES.get(name, name), text) for name, text in report.versions.items()]),
        ("GPUs", [_gpu(gpu) for gpu in report.gpus] or [("none",)]),
        ("parts", [(part.name, part.state, part.reason) for part in report.parts]),
        ("checks", [_check(check) for check in report.checks]),
    ]
    lines = []
    for title, rows in sections:
        if rows:
            lines += [title, *_columns(rows, width), ""]
    return "\n".join([*lines, verdict(report.checks)])


def verdict(checks: Sequence[Check]) -> str:
    """Counts in a line, failures first."""
    failures = [check.name for check in checks if check.status == "failed"]
    counts = [
        f"{sum(check.status == status for check in checks)} {status}"
        for status in ("passed", "skipped")
        if any(check.status == status for check in checks)
    ]
    if failures:
        return f"not ok: {len(failures)} failed ({', '.join(failures)}), {', '.join(counts)}"
    return f"ok: {', '.join(counts)}"


def _gpu(gpu: Gpu) -> tuple[str, ...]:
    free = "" if gpu.free is None else f", {gpu.free / GIB:.1f} free"
    memory = f"{gpu.memory / GIB:.1f} GiB{free}"
    return str(gpu.index), gpu.name, f"capability {gpu.capability}", memory


def _check(check: Check) -> tuple[str, ...]:
    detail = check.detail if check.hint is None else f"{check.detail}\n→ {check.hint}"
    return MARKS[check.status], check.name, detail


def _columns(rows: Sequence[tuple[str, ...]], width: int) -> Iterable[str]:
    """Cells below each other; the last column wraps."""
    last = max(len(row) for row in rows) - 1
    widths = [max((len(row[i]) for row in rows if len(row) > i), default=0) for i in range(last)]
    for row in rows:
        head = "  " + "".join(f"{cell:<{w}}  " for cell, w in zip(row, widths, strict=False))
        text = row[last] if len(row) > last else ""
        for line in _wrapped(text, max(width - len(head), 30)):
            yield (head + line).rstrip()
            head = " " * len(head)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of the text, each wrapped; what an arrow begins hangs behind it."""
    lines = []
    for line in text.splitlines():
        hanging = "  " if line.startswith("→") else ""
        lines += textwrap.wrap(
            line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )
    return lines or [""]
