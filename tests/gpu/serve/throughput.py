"""vLLM's own benchmark (`vllm bench serve`) against several servers in turn, in one process.

    python3 tests/gpu/serve/throughput.py TARGETS.json OUTPUT.json SECONDS

TARGETS is {"model": FOLDER, "layers": NUMBER, "servers": {NAME: URL}}. Rounds go through all
servers and loads; a new round begins only if it can end within SECONDS, and results are medians
over rounds. A server that fails or hangs under a load is left out from there on, and OUTPUT's
neighbour `failed.json` says why.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

CONCURRENCY = (1, 8, 64)
PROMPT_TOKENS = (1000, 8000)
OUTPUT_TOKENS = 128
REQUESTS = {1: 6, 8: 16, 64: 64}
LONG_REQUESTS = {1: 6, 8: 8, 64: 64}
ROUNDS = 9
LONGEST = 90  # seconds of one run; the longest takes 15
FAILED = "failed.json"
Load = tuple[int, int]
LOADS: tuple[Load, ...] = tuple((c, p) for p in PROMPT_TOKENS for c in CONCURRENCY)


def requests(load: Load) -> int:
    """How many requests a measurement sends."""
    concurrency, prompt = load
    return (REQUESTS if prompt < 4000 else LONG_REQUESTS)[concurrency]


def arguments(url: str, model: str, load: Load, seed: int) -> list[str]:
    """What follows `vllm bench serve`."""
    concurrency, prompt = load
    host, port = url.removeprefix("http://").split(":")
    return [
        *("--backend", "openai", "--host", host, "--port", port),
        *("--model", model, "--served-model-name", "model"),
        *("--dataset-name", "random", "--random-input-len", str(prompt)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--random-range-ratio", "0"),
        *("--num-prompts", str(requests(load)), "--max-concurrency", str(concurrency)),
        *("--temperature", "0", "--ignore-eos", "--seed", str(seed), "--disable-tqdm"),
        *("--ready-check-timeout-sec", "0"),
    ]


def bench(given: list[str]) -> dict[str, Any]:
    """One run of the benchmark, its output kept for the message when it fails."""
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    known: argparse.Namespace = parser.parse_args(given)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            return asyncio.run(asyncio.wait_for(serve.main_async(known), LONGEST))
    except BaseException:
        print(said.getvalue()[-3000:], file=sys.stderr)
        raise


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What is kept of a run. `tokens_per_s` counts output tokens."""
    return {
        "tokens_per_s": result["output_throughput"],
        "total_tokens_per_s": result["total_token_throughput"],
        "ttft_ms": result["median_ttft_ms"],
        "tpot_ms": result["median_tpot_ms"],
        "completed": result["completed"],
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Median of each figure over rounds."""
    return {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}


def rows(runs: dict[tuple[str, Load], list[dict[str, float]]], layers: int) -> list[dict[str, Any]]:
    """One row for each server and load; `layers` of the model."""
    return [
        {
            "concurrency": load[0],
            "prompt_tokens": load[1],
            "output_tokens": OUTPUT_TOKENS,
            "layers": layers,
            "impl": name,
            **medians(found),
            "rounds": [round(run["tokens_per_s"], 1) for run in found],
        }
        for (name, load), found in runs.items()
    ]


class Bench:
    """Servers that are measured, and what was found."""

    def __init__(self, servers: dict[str, str], model: str, told: Path) -> None:
        self.servers, self.model, self.told = dict(servers), model, told
        self.runs: dict[tuple[str, Load], list[dict[str, float]]] = {}
        self.failed: dict[str, str] = {}

    def run(self, name: str, load: Load, seed: int) -> dict[str, float] | None:
        """Measure a server under a load; one that fails is left out from there on."""
        try:
            kept = figures(bench(arguments(self.servers[name], self.model, load, seed)))
            if kept["completed"] != requests(load):
                raise RuntimeError(f"{kept['completed']} of {requests(load)} completed")
        except (Exception, SystemExit) as error:  # whatever broke, the others go on
            self.failed[name] = f"{load}: {type(error).__name__} {error}"
            del self.servers[name]
            self.told.write_text(json.dumps(self.failed))
            print(f"FAILED {name} {self.failed[name]}", flush=True)
            return None
        return kept

    def warm(self) -> None:
        """Compile what the first request would wait for."""
        for name in list(self.servers):
            for prompt in PROMPT_TOKENS:
                if name in self.servers:
                    self.run(name, (8, prompt), 999)
            print(f"warm: {name}", flush=True)

    def measure(self, load: Load, number: int) -> str:
        """Every server under a load, in a round; tokens a second.

        Every other round begins with the last: what slows the machine down meanwhile meets all.
        """
        said = []
        for name in list(self.servers)[:: -1 if number % 2 else 1]:
            kept = self.run(name, load, 100 * number + load[0])
            if kept is not None:
                self.runs.setdefault((name, load), []).append(kept)
                said.append(f"{name} {kept['tokens_per_s']:.0f}")
        return ", ".join(said)


def main(targets: str, output: str, seconds: str, *chosen: str) -> None:
    given = json.loads(Path(targets).read_text())
    loads = [load for load in LOADS if not chosen or f"{load[0]}x{load[1]}" in chosen]
    end = time.monotonic() + float(seconds)
    found = Bench(given["servers"], given["model"], Path(output).with_name(FAILED))
    found.warm()
    longest = 0.0
    for number in range(ROUNDS):
        start = time.monotonic()
        if start + longest > end or not found.servers:
            break
        for load in loads:
            said = found.measure(load, number)
            Path(output).write_text(json.dumps(rows(found.runs, given["layers"])))
            print(f"{load}: {said} tokens/s", flush=True)
        longest = time.monotonic() - start
        print(f"round {number}: {longest:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
