"""Where a loading server stands, from vLLM's log lines (0.26 to 0.33)."""

from __future__ import annotations

import re
from collections.abc import Callable

_SHARDS = re.compile(
    r"Loading \S+ checkpoint shards:\s*(?P<percent>\d+)% Completed"
    r" \| (?P<done>\d+)/(?P<all>\d+)"
)
_BAR = re.compile(
    r"(?P<what>[A-Z][\w ()<>,./:-]*?):\s*(?P<percent>\d+)%\|.*?\| *(?P<done>\d+)/(?P<all>\d+)"
)
_GGUF = re.compile(
    r"glm5_kernel: loading shard (?P<shard>\d+/\d+) \((?P<done>[\d.]+) of (?P<all>[\d.]+) GB\)"
)
"""glm5_kernel/gguf/progress.py writes it."""
_ANY_BAR = re.compile(r"\d+%\|.{3,}?\| *[\d.]+\w*/[\d.]+\w*|\d+(?:\.\d+)?[kMG]?B/s")

Said = tuple[str, float | None]
_Maker = Callable[[re.Match[str]], Said]


def _fixed(text: str, fraction: float | None = None) -> _Maker:
    return lambda _match: (text, fraction)


def _with(template: str) -> _Maker:
    return lambda match: (match.expand(template), None)


_LINES: tuple[tuple[re.Pattern[str], _Maker], ...] = (
    (re.compile(r"Starting to load model"), _fixed("loading the model")),
    (re.compile(r"Loading weights took ([\d.]+) s"), _with(r"weights loaded in \1 s")),
    (re.compile(r"glm5_kernel: read [\d.]+ GB in ([\d.]+) s"), _with(r"weights loaded in \1 s")),
    (
        re.compile(r"Model loading took ([\d.]+ GiB)\D* and ([\d.]+) s"),
        _with(r"model loaded: \1"),
    ),
    (re.compile(r"Dynamo bytecode transform time"), _fixed("compiling (torch.compile)")),
    (re.compile(r"Compiling a graph for"), _fixed("compiling (torch.compile)")),
    (re.compile(r"torch\.compile took ([\d.]+) s in total"), _with(r"compiled in \1 s")),
    (re.compile(r"torch\.compile takes ([\d.]+) s in total"), _with(r"compiled in \1 s")),
    (re.compile(r"Initial profiling/warmup run took"), _fixed("profiling memory")),
    (re.compile(r"Profiling CUDA graph memory"), _fixed("profiling CUDA graphs")),
    (re.compile(r"KV cache size: ([\d,]+) tokens"), _with(r"KV cache: \1 tokens")),
    (re.compile(r"Graph capturing finished in (\d+) secs"), _with(r"CUDA graphs captured in \1 s")),
    (re.compile(r"init engine \(profile.*took ([\d.]+) s"), _with(r"engine ready after \1 s")),
    (re.compile(r"Starting vLLM (?:API )?server"), _fixed("starting the API server")),
    (re.compile(r"Application startup complete"), _fixed("API server started", 1.0)),
)  # fmt: skip


def parse_progress(line: str) -> Said | None:
    """A short text and, where the line tells it, the fraction done; None for any other line.

    A progress bar that was redrawn within the line (carriage returns) counts with its last state.
    """
    last = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    if found := _SHARDS.search(last):
        return f"loading weights {found['done']}/{found['all']}", int(found["percent"]) / 100
    if found := _GGUF.search(last):
        return _gguf(found)
    if found := _BAR.search(last):
        return _bar(found)
    for pattern, make in _LINES:
        if found := pattern.search(last):
            return make(found)
    return None


def _gguf(found: re.Match[str]) -> Said:
    done, total = float(found["done"]), float(found["all"])
    text = f"loading shard {found['shard']}, {found['done']} of {found['all']} GB"
    return text, min(done / total, 1.0) if total else None


def _bar(found: re.Match[str]) -> Said:
    what = re.sub(r"\s*\(.*\)", "", found["what"])
    what = what[:1].lower() + what[1:]
    return f"{what} {found['done']}/{found['all']}", int(found["percent"]) / 100


def is_bar(line: str) -> bool:
    """Whether a line is the state of a progress bar, of which a log holds hundreds."""
    return _SHARDS.search(line) is not None or _ANY_BAR.search(line) is not None
