"""Measures the server of this host with vLLM's own benchmark, one load after the other.

    bench.py --url URL --model NAME --tokenizer FOLDER --answer N --seconds S --loads C:P:N[,…]
             [--alone FOLDER] [-- OPTION…]

Runs on the interpreter of the environment that is served, in which vLLM is imported once for all
loads. A load is C requests at once, prompts of P tokens, N requests in all; OPTION… are options of
`vllm bench serve` for every load. Before the first of a prompt length, a few requests that are not
counted have compiled what they need. After S seconds the load at work is stopped, and what is left
is skipped. The key that the server wants is taken from VLLM_API_KEY. FOLDER is held meanwhile:
where another one holds it, this ends at once.

Standard output: lines of progress, and ``RESULT {json}`` at the beginning and after each load.
Exit status 0 also where loads failed: their results say so.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

WARM_CONCURRENCY = 8
WARM_ANSWER = 16
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


@dataclass(frozen=True)
class Load:
    """What one measurement sends.

    Args:
        concurrency: requests at once.
        prompt, answer: tokens of each request.
        requests: in all.
    """

    concurrency: int
    prompt: int
    answer: int
    requests: int

    def describe(self) -> str:
        return f"{self.concurrency} at once, prompts of {self.prompt} tokens"

    def document(self) -> dict[str, Any]:
        return {
            "concurrency": self.concurrency,
            "prompt_tokens": self.prompt,
            "output_tokens": self.answer,
            "requests": self.requests,
        }


@dataclass(frozen=True)
class Server:
    """Whom to ask; `options` are more words for the benchmark."""

    url: str
    model: str
    tokenizer: str
    options: tuple[str, ...]

    def words(self, load: Load, seed: int) -> list[str]:
        """What follows `vllm bench serve` (the same from vLLM 0.26.0 to 0.32.0)."""
        return [
            *("--backend", "openai", "--base-url", self.url),
            *("--model", self.model, "--served-model-name", self.model),
            *("--tokenizer", self.tokenizer, "--dataset-name", "random"),
            *("--random-input-len", str(load.prompt), "--random-output-len", str(load.answer)),
            *("--random-range-ratio", "0", "--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.concurrency), "--seed", str(seed)),
            *("--temperature", "0", "--ignore-eos", "--disable-tqdm", "--save-detailed"),
            *("--percentile-metrics", "ttft,tpot", "--metric-percentiles", "99"),
            *self.options,
        ]


def alone(folder: str) -> None:
    """Hold a folder until this ends: two that began in the same second saw no unit of the other.

    Raises:
        SystemExit: another benchmark holds it.
    """
    try:
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SystemExit("another benchmark runs here: run again when it is done") from error


def prepare() -> None:
    """The key where the benchmark looks for it; no proxy to oneself; a file for each request."""
    if os.environ.get("VLLM_API_KEY"):
        os.environ["OPENAI_API_KEY"] = os.environ["VLLM_API_KEY"]
    for name in PROXIES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt the block after so many seconds, as Ctrl-C would, and again if it goes on."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(words: list[str]) -> dict[str, Any]:
    """One run of vLLM's benchmark; what it prints goes to the journal only where it fails."""
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            found: dict[str, Any] = serve.main(parser.parse_args(words))
    except Exception:
        print(said.getvalue()[-2000:], file=sys.stderr)
        traceback.print_exc()
        raise
    return found


def measured(load: Load, found: dict[str, Any]) -> dict[str, Any]:
    """A load's document, from vLLM's result; times in milliseconds."""
    completed = int(found["completed"])
    document = load.document() | {
        "status": "measured" if completed == load.requests else "failed",
        "completed": completed,
        "seconds": found["duration"],
    }
    if completed:
        document |= {
            "tokens_per_second": found["output_throughput"],
            "total_tokens_per_second": found["total_token_throughput"],
            "requests_per_second": found["request_throughput"],
            "measured_prompt_tokens": found["total_input_tokens"] / completed,
            "ttft_ms": {"median": found["median_ttft_ms"], "p99": found["p99_ttft_ms"]},
            "tpot_ms": {"median": found["median_tpot_ms"], "p99": found["p99_tpot_ms"]},
        }
    if completed < load.requests:
        said = [str(text).strip() for text in found.get("errors") or [] if text]
        why = said[0].splitlines()[-1] if said else "no message"
        document["error"] = f"{load.requests - completed} of {load.requests} requests failed: {why}"
    return document


def measure(server: Server, load: Load, seed: int, seconds: float) -> dict[str, Any]:
    """A load's document, whatever came of it."""
    if seconds <= 0:
        return load.document() | {"status": "skipped", "error": "no time was left for it"}
    try:
        with at_most(seconds):
            return measured(load, run(server.words(load, seed)))
    except KeyboardInterrupt:
        error = f"not done in the {seconds:.0f} s that were left for it"
        return load.document() | {"status": "stopped", "error": error}
    except (Exception, SystemExit) as error:
        text = str(error).strip().partition("\n")[0]
        return load.document() | {"status": "failed", "error": f"{type(error).__name__}: {text}"}


def say(fraction: float, text: str) -> None:
    print(f"PROGRESS {fraction:.4f} {text}", flush=True)


def result(document: dict[str, Any]) -> None:
    print(f"RESULT {json.dumps(document)}", flush=True)


def parse(words: list[str]) -> tuple[Server, list[Load], float, str | None]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("url", "model", "tokenizer", "loads"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--answer", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--alone")
    parser.add_argument("options", nargs="*")
    given = parser.parse_args(words)
    loads = []
    for text in given.loads.split(","):
        concurrency, prompt, requests = map(int, text.split(":"))
        loads.append(Load(concurrency, prompt, given.answer, requests))
    server = Server(given.url, given.model, given.tokenizer, tuple(given.options))
    return server, loads, given.seconds, given.alone


def main(words: list[str]) -> None:
    server, loads, seconds, folder = parse(words)
    if folder:
        alone(folder)
    prepare()
    say(0, "importing vLLM")
    import vllm.benchmarks.serve  # before the clock runs

    seed, until = int.from_bytes(os.urandom(3), "big"), time.monotonic() + seconds
    result({"vllm": vllm.__version__, "seed": seed, "began": time.time()})
    warm: set[int] = set()
    for number, load in enumerate(loads):
        if load.prompt not in warm:
            warm.add(load.prompt)
            say(number / len(loads), f"warming up with prompts of {load.prompt} tokens")
            size = min(WARM_CONCURRENCY, max(each.concurrency for each in loads))
            first = replace(load, concurrency=size, requests=size)
            first = replace(first, answer=min(load.answer, WARM_ANSWER))
            measure(server, first, seed + 1000 + number, until - time.monotonic())
        say(number / len(loads), f"load {number + 1}/{len(loads)}: {load.describe()}")
        result(measure(server, load, seed + number, until - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1:])
