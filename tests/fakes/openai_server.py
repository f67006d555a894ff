#!/usr/bin/env python3
"""A small OpenAI-like server that behaves, and misbehaves, as vLLM does.

One file, standard library only, so that it can be copied to a host and named as a profile's
engine command:

    python3 openai_server.py [serve] MODEL --host 127.0.0.1 --port 8000 [FLAGS]

Flags that it does not know (vLLM's) are ignored. It answers /health, /v1/models, /v1/completions,
/v1/chat/completions (both streamed too), /tokenize, /version and /metrics. A key in
``VLLM_API_KEY`` (or ``--api-key``) guards paths under /v1 alone, as in vLLM. It logs the lines of
a vLLM start (loading %, compile, graphs, "Application startup complete"), ends on SIGTERM with
status 0, and ends with status 1 and Python's own message where its port is taken.

Its greedy answer to anything is ``" one two three …"``: token i of an answer is the i-th word of
`WORDS` with id i + 1, so ``max_tokens: 3`` gives the text ``" one two three"`` and the token ids
``[1, 2, 3]``. A prompt's tokens are its words.

Flags of its own:
    --served-model-name NAME   name in the API; default: MODEL's last path component
    --max-model-len N          default 4096; a longer prompt is refused with 400
    --load-seconds S           time from start to listening (default 0.2)
    --token-seconds S          pause before each token (default 0)
    --backend NAME             attention backend in the log (default TRITON_MLA_SPARSE)
    --kernel-line              log ``glm5_kernel: attention=NAME kv=KV indexer=triton`` as well
    --kv-cache-dtype KV        what that line names (default auto)
    --fault NAME [NAME …]      faults that hold from the start; also repeated or comma-separated
    --control FILE             more faults, read from FILE (names separated by white space) before
                               each answer; it may come and go. Also from FAKE_CONTROL.
    --crash-after S            with exit-0 and crash-later: seconds of serving (default 1)

Faults at start (read once):
    never-listens     keeps loading for ever
    crash             ends with status 1 and a traceback while loading (a loop under Restart=always)
    exit-0            ends with status 0, --crash-after seconds after it began to serve
    crash-later       the same with status 1
    oom               ends with status 1 and CUDA's out-of-memory message while loading
    no-backend        ends with status 1 and "No valid attention backend found"
    ignore-sigterm    SIGTERM changes nothing: only SIGKILL ends it
    wrong-backend     the log names FLASHMLA instead of --backend
    wrong-cache       the line of --kernel-line names bf16 instead of --kv-cache-dtype
Faults while it runs (from --fault or --control):
    unhealthy         /health answers 503; everything else works
    dead-engine       /health answers 503, models are listed, generation answers 500
    generation-fails  /health answers 200, models are listed, generation answers 500
    hang              generation never answers
    hang-health       /health never answers
    hang-stream       a stream stops after two tokens
    drop              the connection ends in mid-stream
    no-done           a stream ends without [DONE]
    no-usage          a stream has no usage
    bad-sse           a stream holds a line of broken JSON
    empty             answers hold no text
    wrong-tokens      the words come in reverse order
    non-deterministic the words start anywhere
    slow              0.05 s before each token
    nan               log-probabilities are NaN
    null-logprobs     log-probabilities are null
    html              an HTML page with status 200 where JSON is due
    wrong-model       the list names another model
    no-tokenize       /tokenize answers 404
    short-count       usage counts one prompt token too few
    forgets           a number that the prompt tells is not told again
    fails-under-load  a third concurrent request answers 503
    no-auth           every key is taken
    refuse-all        every key is refused
    no-chat-template  chat answers 400 as vLLM does without a template
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORDS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty"),
)
TEXT = "text/plain; version=0.0.4"


class Options:
    """What the command line says; see the module's docstring."""

    def __init__(self, argv: list[str]) -> None:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--model")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--served-model-name")
        parser.add_argument("--max-model-len", type=int, default=4096)
        parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY") or None)
        parser.add_argument("--load-seconds", type=float, default=0.2)
        parser.add_argument("--token-seconds", type=float, default=0.0)
        parser.add_argument("--backend", default="TRITON_MLA_SPARSE")
        parser.add_argument("--kernel-line", action="store_true")
        parser.add_argument("--kv-cache-dtype", default="auto")
        parser.add_argument("--fault", nargs="*", action="extend", default=[])
        parser.add_argument("--control", default=os.environ.get("FAKE_CONTROL"))
        parser.add_argument("--crash-after", type=float, default=1.0)
        # Positionals come first, as in `vllm serve MODEL`; later words belong to vLLM's flags.
        first_flag = next((i for i, a in enumerate(argv) if a.startswith("-")), len(argv))
        positional = [word for word in argv[:first_flag] if word != "serve"]
        args, _ = parser.parse_known_args(argv[first_flag:])
        self.args = args
        model = args.model or (positional[0] if positional else "fake")
        self.model: str = model
        self.name: str = args.served_model_name or Path(model).name
        self.faults = frozenset(name for text in args.fault for name in text.split(",") if name)

    def active(self) -> frozenset[str]:
        """The faults that hold now."""
        try:
            extra = Path(self.args.control).read_text().split() if self.args.control else []
        except OSError:
            extra = []
        return self.faults.union(extra)


def log(text: str, module: str = "api_server.py:140", level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {stamp} [{module}] {text}", flush=True)


def worker_log(text: str, module: str, level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"(EngineCore pid={os.getpid()}) {level} {stamp} [{module}] {text}", flush=True)


def die(message: str) -> None:
    """End as vLLM does when the engine core cannot start."""
    worker_log("EngineCore failed to start.", "core.py:1330", "ERROR")
    worker_log("Traceback (most recent call last):", "core.py:1330", "ERROR")
    worker_log(message, "core.py:1330", "ERROR")
    print(
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
        file=sys.stderr,
        flush=True,
    )
    sys.exit(1)


def load(options: Options) -> None:
    """Print what a vLLM start prints, spread over --load-seconds."""
    faults, pause = options.active(), options.args.load_seconds / 10
    log(f"vLLM API server version 0.0.0+fake, model {options.model}")
    worker_log(f"Starting to load model {options.model}...", "gpu_model_runner.py:5040")
    if "no-backend" in faults:
        die(
            "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig("
            "head_size=576, use_mla=True, use_sparse=True). "
            "Reasons: {FLASHMLA_SPARSE: [compute capability not supported]}."
        )
    backend = "FLASHMLA" if "wrong-backend" in faults else options.args.backend
    worker_log(
        f"Using {backend} attention backend out of potential backends: ['{backend}'].",
        "cuda.py:507",
    )
    if options.args.kernel_line:
        cache = "bf16" if "wrong-cache" in faults else options.args.kv_cache_dtype
        worker_log(
            f"glm5_kernel: attention={backend} kv={cache} indexer=triton",
            "plugin.py:1",
        )
    for shard in range(6):
        print(
            f"\rLoading safetensors checkpoint shards: {shard * 20:3d}% Completed | {shard}/5 "
            "[00:00<00:00,  5.53it/s]",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(pause)
    if "never-listens" in faults:
        threading.Event().wait()
    if "crash" in faults:
        die("RuntimeError: the weights of layer 3 have the wrong shape")
    if "oom" in faults:
        die("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    worker_log("Loading weights took 5.62 seconds", "default_loader.py:502")
    worker_log(
        "Model loading took 51.1 GiB memory and 5.980752 seconds", "gpu_model_runner.py:5150"
    )
    worker_log("Dynamo bytecode transform time: 6.24 s", "backends.py:1167")
    time.sleep(pause)
    worker_log("torch.compile took 34.14 s in total", "monitor.py:20")
    worker_log(
        "GPU KV cache size: 360,448 tokens, Maximum concurrency 44.00x", "kv_cache_utils.py:2328"
    )
    for done in (0, 26, 51):
        print(
            f"\rCapturing CUDA graphs (decode, FULL): {done * 100 // 51:3d}%|██| {done}/51",
            end="" if done < 51 else "\n",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(pause)
    worker_log("Graph capturing finished in 18 secs, took 0.96 GiB", "gpu_model_runner.py:6582")
    worker_log("init engine (profile, create kv cache, warmup model) took 70.62 s", "core.py:403")


def words_of(prompt: object) -> list[int]:
    """A prompt's token ids: given as such, or one a word."""
    if isinstance(prompt, list):
        return [int(item) for item in prompt]
    return [zlib.crc32(word.encode()) % 30000 + 100 for word in re.findall(r"\S+", str(prompt))]


class BrokenRequestError(Exception):
    """Carries the status and message of a refused request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: Options
    counters: dict[str, float]
    lock: threading.Lock

    # --- plumbing ---

    def log_message(self, format: str, *args: object) -> None:
        text = format % args
        print(f"(APIServer pid={os.getpid()}) INFO:     127.0.0.1:0 - {text}", flush=True)

    def answer(self, status: int, body: object, content_type: str = "application/json") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def refused(self, faults: frozenset[str]) -> bool:
        key = self.options.args.api_key
        if not self.path.startswith("/v1") or key is None or "no-auth" in faults:
            return False
        if self.headers.get("Authorization") == f"Bearer {key}" and "refuse-all" not in faults:
            return False
        self.answer(401, {"error": "Unauthorized"})
        return True

    def guarded(self, act: Callable[[frozenset[str]], None]) -> None:
        faults = self.options.active()
        if self.refused(faults):
            return
        try:
            act(faults)
        except BrokenRequestError as broken:
            self.answer(
                broken.status, {"error": {"message": broken.message, "code": broken.status}}
            )
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # --- GET ---

    def do_GET(self) -> None:
        self.guarded(self.get)

    def get(self, faults: frozenset[str]) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping"):
            if "hang-health" in faults:
                time.sleep(3600)
            bad = faults & {"unhealthy", "dead-engine"}
            self.answer(503 if bad else 200, b"", "text/plain")
        elif path == "/v1/models":
            self.models(faults)
        elif path == "/metrics":
            self.answer(200, self.metrics().encode(), TEXT)
        elif path == "/version":
            self.answer(200, {"version": "0.0.0+fake"})
        else:
            raise BrokenRequestError(404, "Not Found")

    def models(self, faults: frozenset[str]) -> None:
        if "html" in faults:
            self.answer(200, b"<html><body>Welcome to nginx!</body></html>", "text/html")
            return
        name = "another-model" if "wrong-model" in faults else self.options.name
        limit = self.options.args.max_model_len
        data = [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": limit}]
        self.answer(200, {"object": "list", "data": data})

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.options.name}"}}'
        rows = {
            "vllm:num_requests_running": ("gauge", self.counters["running"]),
            "vllm:num_requests_waiting": ("gauge", 0.0),
            "vllm:kv_cache_usage_perc": ("gauge", 0.125),
            "vllm:prompt_tokens_total": ("counter", self.counters["prompt"]),
            "vllm:generation_tokens_total": ("counter", self.counters["generated"]),
        }
        return "".join(
            f"# HELP {name} .\n# TYPE {name} {kind}\n{name}{label} {value}\n"
            for name, (kind, value) in rows.items()
        )

    # --- POST ---

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.guarded(lambda faults: self.post(faults, raw))

    def post(self, faults: frozenset[str], raw: bytes) -> None:
        try:
            body = json.loads(raw)
        except ValueError:
            raise BrokenRequestError(400, "the body is not JSON") from None
        if self.path == "/tokenize" and "no-tokenize" not in faults:
            tokens = words_of(body.get("prompt", ""))
            limit = self.options.args.max_model_len
            self.answer(200, {"count": len(tokens), "max_model_len": limit, "tokens": tokens})
        elif self.path in ("/v1/completions", "/v1/chat/completions"):
            with self.lock:
                self.counters["running"] += 1
            try:
                self.generate(faults, body)
            finally:
                with self.lock:
                    self.counters["running"] -= 1
        else:
            raise BrokenRequestError(404, "Not Found")

    def generate(self, faults: frozenset[str], body: dict[str, Any]) -> None:
        chat = self.path.endswith("chat/completions")
        self.check(faults, body, chat)
        if chat:
            prompt = words_of(" ".join(str(m.get("content")) for m in body.get("messages", [])))
        else:
            prompt = words_of(body.get("prompt", ""))
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        if len(prompt) + count > self.options.args.max_model_len:
            raise BrokenRequestError(
                400,
                f"This model's maximum context length is {self.options.args.max_model_len} tokens. "
                f"However, your request has {len(prompt)} input tokens.",
            )
        ids = self.tokens(faults, count)
        with self.lock:
            self.counters["prompt"] += len(prompt)
        reported = len(prompt) - 1 if "short-count" in faults else len(prompt)
        usage = {
            "prompt_tokens": reported,
            "completion_tokens": len(ids),
            "total_tokens": reported + len(ids),
        }
        if body.get("stream"):
            self.stream(faults, body, chat, ids, usage)
        else:
            for _ in ids:
                self.one_token(faults)
            self.answer(200, self.document(faults, body, chat, ids, usage))

    def check(self, faults: frozenset[str], body: dict[str, Any], chat: bool) -> None:
        if "hang" in faults:
            time.sleep(3600)
        if "html" in faults:
            self.answer(200, b"<html><body>Welcome to nginx!</body></html>", "text/html")
            raise BrokenPipeError
        if faults & {"dead-engine", "generation-fails"}:
            raise BrokenRequestError(
                500, "EngineCore encountered an issue. See stack trace (above)."
            )
        # A request whose answer has just arrived may still be counted: a client's next is not load.
        if "fails-under-load" in faults and self.counters["running"] > 2:
            raise BrokenRequestError(503, "the server is overloaded")
        if chat and "no-chat-template" in faults:
            raise BrokenRequestError(
                400,
                "As of transformers v4.44, default chat template is no longer allowed, so you must "
                "provide a chat template if the tokenizer does not define one.",
            )
        if body.get("model") not in (None, self.options.name):
            raise BrokenRequestError(404, f"The model `{body.get('model')}` does not exist.")
        if "fails-under-load" in faults:
            time.sleep(0.3)

    def tokens(self, faults: frozenset[str], count: int) -> list[int]:
        if "empty" in faults:
            return []
        start = random.randrange(1, 20) if "non-deterministic" in faults else 0
        ids = [(start + i) % len(WORDS) + 1 for i in range(count)]
        return ids[::-1] if "wrong-tokens" in faults else ids

    def one_token(self, faults: frozenset[str]) -> None:
        time.sleep(0.05 if "slow" in faults else self.options.args.token_seconds)
        with self.lock:
            self.counters["generated"] += 1

    def choice(
        self, faults: frozenset[str], body: dict[str, Any], ids: list[int]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if body.get("return_token_ids"):
            found["token_ids"] = ids
        if body.get("logprobs") not in (None, False):
            bad = float("nan") if "nan" in faults else None
            value = bad if faults & {"nan", "null-logprobs"} else -0.25
            names = [f" {WORDS[i - 1]}" for i in ids]
            found["logprobs"] = {
                "tokens": names,
                "token_logprobs": [value] * len(ids),
                "top_logprobs": [{name: value} for name in names],
                "text_offset": [0] * len(ids),
            }
        return found

    def document(
        self,
        faults: frozenset[str],
        body: dict[str, Any],
        chat: bool,
        ids: list[int],
        usage: dict[str, int],
    ) -> dict[str, Any]:
        text = "".join(f" {WORDS[i - 1]}" for i in ids)
        hidden = re.search(r"has the number (\d+)", json.dumps(body))
        if hidden and "forgets" not in faults:
            text = f" {hidden[1]}"
        choice = self.choice(faults, body, ids)
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if chat else "text_completion"
        return {"id": "fake", "object": kind, "model": self.options.name, "choices": [choice],
                "usage": usage}  # fmt: skip

    def stream(
        self,
        faults: frozenset[str],
        body: dict[str, Any],
        chat: bool,
        ids: list[int],
        usage: dict[str, int],
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for position, token in enumerate(ids):
            self.one_token(faults)
            if position == 2 and "hang-stream" in faults:
                time.sleep(3600)
            if position == 2 and "drop" in faults:
                self.close_connection = True
                return
            if position == 2 and "bad-sse" in faults:
                self.chunk(b'data: {"choices": [{"te\n\n')
            text = f" {WORDS[token - 1]}"
            part: dict[str, Any] = {"index": 0, "finish_reason": None}
            part.update({"delta": {"content": text}} if chat else {"text": text})
            if body.get("return_token_ids"):
                part["token_ids"] = [token]
            self.event({"id": "fake", "model": self.options.name, "choices": [part]})
        if (body.get("stream_options") or {}).get("include_usage") and "no-usage" not in faults:
            self.event({"id": "fake", "model": self.options.name, "choices": [], "usage": usage})
        if "no-done" not in faults:
            self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, document: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, raw: bytes) -> None:
        """Send in two pieces, so that a client meets boundaries within a line."""
        for piece in (raw[: len(raw) // 2], raw[len(raw) // 2 :]):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def make_server(argv: list[str]) -> Server:
    """A bound server that nobody runs yet: for tests in one process. Port 0 takes a free one."""
    options = Options(argv)
    handler = type(
        "BoundHandler",
        (Handler,),
        {
            "options": options,
            "counters": {"running": 0.0, "prompt": 0.0, "generated": 0.0},
            "lock": threading.Lock(),
        },
    )
    return Server((options.args.host, options.args.port), handler)


def end_later(options: Options) -> None:
    for fault, status in (("exit-0", 0), ("crash-later", 1)):
        if fault in options.faults:
            timer = threading.Timer(options.args.crash_after, os._exit, (status,))
            timer.daemon = True
            timer.start()


def main(argv: list[str]) -> int:
    options = Options(argv)

    def stop(_signal: int, _frame: object) -> None:
        if "ignore-sigterm" not in options.faults:
            print(f"(APIServer pid={os.getpid()}) INFO:     Shutting down", flush=True)
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    load(options)
    try:
        server = make_server(argv)
    except OSError:
        traceback.print_exc()
        return 1
    log(f"Starting vLLM server on http://{options.args.host}:{options.args.port}")
    print(f"(APIServer pid={os.getpid()}) INFO:     Application startup complete.", flush=True)
    end_later(options)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
