"""A stand-in for `vllm serve` with token ids: what comes next follows from the tokens before.

    python completions_server.py MODEL --port N [anything else]

It prints the line by which a worker says what serves, and answers /health, and /v1/completions
with `prompt_logprobs`, `logprobs` and `return_token_ids` in vLLM 0.26's form, and writes a trace of
one kernel when a profile ends. `FAKE_NOISE` makes its log-probabilities differ by so much,
`FAKE_EXIT` makes it end at once.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VOCAB = 64


def logprobs(before: list[int]) -> dict[int, float]:
    """Of each of 64 tokens from id 3 on."""
    noise = float(os.environ.get("FAKE_NOISE", "0"))
    seed = zlib.crc32(repr(before[-3:]).encode())
    raw = [((seed * (2 * i + 1)) % 1009) / 200 for i in range(VOCAB)]
    raw = [value + noise * math.sin(seed + i) for i, value in enumerate(raw)]
    total = math.log(sum(math.exp(value) for value in raw))
    return {i + 3: value - total for i, value in enumerate(raw)}


def complete(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    ids, made = list(body["prompt"]), []
    values, tops = [], []
    for _ in range(body["max_tokens"]):
        row = logprobs(ids + made)
        order = sorted(row, key=lambda token: -row[token])
        made.append(order[0])
        values.append(row[order[0]])
        tops.append({f"token_id:{t}": row[t] for t in order[: max(body.get("logprobs") or 0, 1)]})
    choice: dict[str, Any] = {
        "token_ids": made,
        "logprobs": {"token_logprobs": values, "top_logprobs": tops},
    }
    if body.get("prompt_logprobs") is not None:
        rows = [None]
        for i in range(1, len(ids)):
            value = logprobs(ids[:i]).get(ids[i], -20.0)
            rows.append({str(ids[i]): {"logprob": value}})
        choice["prompt_logprobs"] = rows
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 0}}}


def write_trace() -> None:
    """Into the folder that the arguments name, as torch's profiler does."""
    folder = Path(json.loads(option("--profiler-config"))["torch_profiler_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "execute_1", "ts": 0, "dur": 9},
        {"ph": "X", "cat": "kernel", "name": "a_kernel", "ts": 1, "dur": 7},
    ]
    with gzip.open(folder / "rank0.pt.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    """Two paths."""

    def log_message(self, *given: object) -> None:
        """Nothing is said for each request."""

    def reply(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.reply({})

    def do_POST(self) -> None:
        if self.path.endswith("_profile"):
            if self.path == "/stop_profile":
                write_trace()
            self.reply({})
            return
        length = int(self.headers["Content-Length"])
        self.reply(complete(json.loads(self.rfile.read(length))))


def main(given: list[str]) -> None:
    if os.environ.get("FAKE_EXIT"):
        print("ValueError: no backend", flush=True)
        raise SystemExit(3)
    backend = given[given.index("--attention-backend") + 1]
    kv = given[given.index("--kv-cache-dtype") + 1]
    dtype = {"float16": "fp16", "bfloat16": "bf16"}[given[given.index("--dtype") + 1]]
    if backend == "CUSTOM":
        shown = dtype if kv == "auto" else kv
        workers = (
            int(given[given.index("--tensor-parallel-size") + 1])
            if ("--tensor-parallel-size" in given)
            else 1
        )
        for _ in range(workers):
            print(f"glm5_kernel: attention=TRITON_MLA_SPARSE kv={shown} indexer=triton", flush=True)
    else:
        print(f"Using AttentionBackendEnum.{backend} backend.", flush=True)
    port = int(given[given.index("--port") + 1])
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
