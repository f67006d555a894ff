"""A stand-in for ``vllm.benchmarks.serve`` (vLLM 0.26.0): the options and results that we use.

Real requests go to the server; the prompts are words, one a token for the scriptable server.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TEXTS = (
    "backend", "base-url", "model", "served-model-name", "tokenizer", "tokenizer-mode",
    "dataset-name", "random-range-ratio", "percentile-metrics", "metric-percentiles",
)  # fmt: skip
NUMBERS = ("random-input-len", "random-output-len", "num-prompts", "max-concurrency", "seed")
FLAGS = ("ignore-eos", "disable-tqdm", "save-detailed", "trust-remote-code")


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    for name in TEXTS:
        parser.add_argument(f"--{name}")
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--temperature", type=float)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")


def main(args: argparse.Namespace) -> dict[str, Any]:
    print(args)
    if not os.path.isdir(args.tokenizer):
        raise OSError(f"{args.tokenizer} is not a local folder\nand this is a second line")
    start = time.perf_counter()
    with ThreadPoolExecutor(args.max_concurrency) as pool:
        answers = list(pool.map(lambda n: ask(args, n), range(args.num_prompts)))
    return summary(args, answers, time.perf_counter() - start)


def ask(args: argparse.Namespace, number: int) -> tuple[float, float, str]:
    """Seconds to the first token, between tokens, and why it failed."""
    body = {
        "model": args.served_model_name,
        "prompt": " ".join([f"w{args.seed}x{number}"] * args.random_input_len),
        "max_tokens": args.random_output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(f"{args.base_url}/v1/completions", json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {os.environ.get('OPENAI_API_KEY')}")
    start, stamps = time.perf_counter(), []
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            for line in response:
                if b'"text"' in line:
                    stamps.append(time.perf_counter() - start)
    except urllib.error.HTTPError as error:
        return 0.0, 0.0, error.reason
    between = (stamps[-1] - stamps[0]) / max(len(stamps) - 1, 1)
    return stamps[0], between, ""


def summary(
    args: argparse.Namespace, answers: list[tuple[float, float, str]], seconds: float
) -> dict[str, Any]:
    good = [answer for answer in answers if not answer[2]]
    count, answer = len(good), args.random_output_len
    first = sorted(each[0] * 1000 for each in good) or [0.0]
    between = sorted(each[1] * 1000 for each in good) or [0.0]
    return {
        "duration": seconds,
        "completed": count,
        "failed": len(answers) - count,
        "total_input_tokens": count * args.random_input_len,
        "total_output_tokens": count * answer,
        "request_throughput": count / seconds,
        "output_throughput": count * answer / seconds,
        "total_token_throughput": count * (answer + args.random_input_len) / seconds,
        "median_ttft_ms": first[len(first) // 2],
        "p99_ttft_ms": first[-1],
        "median_tpot_ms": between[len(between) // 2],
        "p99_tpot_ms": between[-1],
        "errors": [each[2] for each in answers],
    }
