"""What a server's kernels take: vLLM's own torch profiler, read from the traces it writes.

Serving a small model is mostly the processor's work; the kernels' time alone is what a large model
is left with. Decode is measured on prompts that the prefix cache holds already, prefill on new
ones with one token of output; a mixed load has both, new prompts that begin while others decode.
"""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import ask, model, prompts

KEPT = 24  # kernels of a row, and calls
OUTPUT_TOKENS = 24  # writing the trace of more steps takes many seconds
LEAST = 20  # seconds that a load may need
STEP = "execute_"  # how vLLM's marks of a step begin (v1/worker/gpu_worker.py)
Event = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """Requests at a time and their tokens; decode, prefill or mixed."""

    what: str
    concurrency: int
    prompt_tokens: int

    @property
    def output_tokens(self) -> int:
        return 1 if self.what == "prefill" else OUTPUT_TOKENS


LOADS = (
    Load("decode", 1, 1000),
    Load("decode", 64, 1000),
    Load("decode", 8, 8000),
    Load("prefill", 1, 8000),
    Load("prefill", 8, 1000),
    Load("mixed", 64, 1000),
)


def arguments(folder: Path) -> list[str]:
    """For `vllm serve`: profiling of the worker alone, which begins when it is asked for."""
    wanted = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,  # a table that takes longer than the trace
        "ignore_frontend": True,
    }
    return ["--profiler-config", json.dumps(wanted)]


def asked(load: Load, number: int) -> list[list[int]]:
    """Prompts that differ from those of another `number`."""
    stream = np.random.Generator(np.random.PCG64([11, number]))
    size = (load.concurrency, load.prompt_tokens)
    return [list(map(int, ids)) for ids in stream.integers(prompts.FIRST, model.VOCAB, size)]


def send(client: ask.Client, load: Load, number: int) -> None:
    """All requests at once."""
    given = asked(load, number)
    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(lambda ids: client.complete(ids, load.output_tokens), given))


def post(url: str, path: str, timeout: float) -> None:
    request = urllib.request.Request(f"{url}/{path}", b"", method="POST")
    with urllib.request.urlopen(request, timeout=timeout):
        pass


def newest(folder: Path) -> Path:
    """The trace that was written last."""
    return max(folder.rglob("*.json.gz"), key=lambda path: path.stat().st_mtime)


@dataclass(frozen=True)
class Trace:
    """What ran on the GPU and on the processor, each in order, and in how many of its steps."""

    kernels: list[Event]
    calls: list[Event]
    steps: int


def read(trace: Path) -> Trace:
    """Of vLLM's worker; calls contain others."""
    with gzip.open(trace, "rt") as file:
        events = [each for each in json.load(file)["traceEvents"] if each.get("ph") == "X"]
    kernels = of_kind(events, {"kernel", "gpu_memcpy", "gpu_memset"})
    calls = of_kind(events, {"user_annotation", "cpu_op", "cuda_runtime", "cuda_driver"})
    for each in calls:
        if str(each["name"]).startswith(STEP):  # its rest says what the batch was
            each["name"] = STEP
    return Trace(kernels, calls, sum(each["name"] == STEP for each in calls))


def of_kind(events: Sequence[Event], wanted: set[str]) -> list[Event]:
    """Events of some categories, in order."""
    found = [each for each in events if each.get("cat") in wanted]
    return sorted(found, key=lambda each: float(each["ts"]))


def busy(events: Sequence[Event]) -> float:
    """µs in which at least one of the events ran."""
    total, end = 0.0, float("-inf")
    for each in events:
        start, stop = float(each["ts"]), float(each["ts"]) + float(each["dur"])
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def most(events: Sequence[Event], steps: int) -> list[dict[str, Any]]:
    """Names that take most, µs for each step."""
    totals: dict[str, list[float]] = defaultdict(list)
    for each in events:
        totals[str(each["name"])].append(float(each["dur"]))
    order = sorted(totals, key=lambda name: -sum(totals[name]))
    return [
        {
            "name": name[:100],
            "us": round(sum(totals[name]) / steps, 2),
            "calls": round(len(totals[name]) / steps, 2),
        }
        for name in order[:KEPT]
    ]


def summary(trace: Trace) -> dict[str, Any]:
    """µs for each step: the wall clock, the GPU's, and what takes most of the GPU and before it."""
    events, steps = trace.kernels, trace.steps
    if not events or not steps:
        return {"steps": steps, "wall_us": 0.0, "busy_us": 0.0, "kernels": [], "calls": []}
    last = max(float(each["ts"]) + float(each["dur"]) for each in events)
    return {
        "steps": steps,
        "wall_us": round((last - float(events[0]["ts"])) / steps, 1),
        "busy_us": round(busy(events) / steps, 1),
        "launches": round(len(events) / steps, 1),
        "kernels": most(events, steps),
        "calls": most(trace.calls, steps),
    }


def record(url: str, number: int, timeout: float) -> None:
    """Send a load, profiled; `written` ends the profile."""
    load = LOADS[number]
    client = ask.Client(url, timeout)
    again = load.what == "decode"
    send(client, load, 10 * number)
    post(url, "start_profile", timeout)
    send(client, load, 10 * number if again else 10 * number + 1)


def written(url: str, folder: Path, number: int, timeout: float) -> Path:
    """The trace of what `record` sent, under a name of its own; the server writes it meanwhile."""
    post(url, "stop_profile", timeout)
    return newest(folder).replace(folder.parent / f"{folder.name}-{number}.json.gz")


def row(load: Load, trace: Path) -> dict[str, Any]:
    """What a trace says."""
    about = {"what": load.what, "concurrency": load.concurrency}
    about |= {"prompt_tokens": load.prompt_tokens}
    return {**about, **summary(read(trace))}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row."""
    lines = [f"{'server':16}{'load':22}{'wall µs':>10}{'GPU µs':>10}{'launches':>10}  most of it"]
    for row in rows:
        load = f"{row['what']} {row['concurrency']} x {row['prompt_tokens']}"
        most = ", ".join(f"{each['us']:.0f} {each['name'][:28]}" for each in row["kernels"][:3])
        lines.append(
            f"{row['impl']:16}{load:22}{row['wall_us']:10.0f}{row['busy_us']:10.0f}"
            f"{row.get('launches', 0):10.0f}  {most}"
        )
    return "\n".join(lines)
