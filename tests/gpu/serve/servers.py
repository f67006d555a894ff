"""Starting `vllm serve`, waiting for it without hanging, and ending it with all its children."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LAST_LINES = 60
OURS_LINE = re.compile(r"glm5_kernel: attention=(\S+) kv=(\S+) indexer=(\S+)")
STOCK_LINE = re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+_SPARSE)\b.*backend")
VLLM = ("-m", "vllm.entrypoints.cli.main", "serve")


class ServerError(Exception):
    """A server ended, or was not ready in time; the message ends with its log's last lines."""


@dataclass
class Server:
    """A started server; `url` answers once `wait` has returned."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    file: IO[bytes]
    started: float

    def text(self) -> str:
        """The whole log so far."""
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = LAST_LINES) -> str:
        """Lines that matter when a start failed: errors first, then the end."""
        found = self.text().splitlines()
        errors = [line for line in found[:-lines] if re.search(r"\w+Error\b", line)]
        return "\n".join([*errors[:15], *found[-lines:]])

    def backends(self) -> list[str]:
        """What the log says about which kernels serve, each once."""
        text = self.text()
        ours = [
            f"attention={found[1]} kv={found[2]} indexer={found[3]}"
            for found in OURS_LINE.finditer(text)
        ]
        return list(dict.fromkeys(ours or STOCK_LINE.findall(text)))


def environment(base: Mapping[str, str], paths: Sequence[Path], cache: Path) -> dict[str, str]:
    """Environment of a server: found packages, no network, one cache for all.

    Multicast over NVLink stays off: a program that uses it can take a shared host out of service.
    """
    return {
        **base,
        "PYTHONPATH": ":".join(str(path) for path in paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "DG_JIT_CACHE_DIR": str(cache / "deep_gemm"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }


def start(
    name: str,
    arguments: Sequence[str],
    port: int,
    env: Mapping[str, str],
    folder: Path,
    program: Sequence[str] = (sys.executable, *VLLM),
) -> Server:
    """Start a server in a session of its own; its output goes to `folder`/NAME.log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    file = log.open("wb")
    process = subprocess.Popen(
        [*program, *arguments],
        env=dict(env),
        stdout=file,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    return Server(name, url, process, log, file, time.monotonic())


def healthy(url: str) -> bool:
    """Whether /health answers 200 within two seconds."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait(server: Server, deadline: float, every: float = 0.5) -> float:
    """Wait until the server answers.

    Args:
        deadline: on the clock of `time.monotonic`.

    Returns: seconds since its start.

    Raises:
        ServerError: it ended, or the deadline passed.
    """
    while not healthy(server.url):
        code = server.process.poll()
        if code is not None:
            raise ServerError(f"{server.name} ended with {code}:\n{server.tail()}")
        if time.monotonic() > deadline:
            raise ServerError(f"{server.name} was not ready in time:\n{server.tail()}")
        time.sleep(every)
    return time.monotonic() - server.started


def dump_stacks(server: Server, seconds: float = 3) -> None:
    """Make every process of a server that hangs write its threads' stacks into its log, and end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGABRT)
    time.sleep(seconds)


def stop(server: Server, patience: float = 10) -> None:
    """End the server and every process of its session's group."""
    stop_all([server], patience)


def stop_all(running: Sequence[Server], patience: float = 10) -> None:
    """End servers, all at once: none waits for another's `patience`."""
    for number, limit in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        for server in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.process.pid, number)
        end = time.monotonic() + limit
        for server in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(max(0.0, end - time.monotonic()))
    for server in running:
        server.file.close()
