"""The benchmark's program on the host, with a stand-in for vLLM's benchmark and a server here."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import openai_server

PROGRAM = Path(__file__).parents[3] / "deploy" / "glm5_deploy" / "onhost" / "bench.py"
STAND_IN = Path(__file__).parents[2] / "fakes" / "vllm_bench.py"
KEY = "key-of-the-server"
Server = Callable[..., str]


@pytest.fixture
def server() -> Iterator[Server]:
    """Starts a server with flags, and gives its address."""
    started = []

    def start(*flags: str) -> str:
        words = ["serve", "/models/tiny", "--port", "0", "--api-key", KEY, *flags]
        found = openai_server.make_server(words)
        started.append(found)
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{found.server_address[1]}"

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages in which there is a vLLM."""
    package = tmp_path / "site" / "vllm" / "benchmarks"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text('__version__ = "0.26.0"\n')
    (package / "__init__.py").touch()
    (package / "serve.py").write_text(STAND_IN.read_text())
    return tmp_path / "site"


def run(
    site: Path, url: str, loads: str, *more: str, seconds: float = 60, **environment: str
) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    words = [sys.executable, str(PROGRAM), "--url", url, "--model", "tiny"]
    words += ["--tokenizer", str(site), "--answer", "4", "--seconds", str(seconds)]
    words += ["--loads", loads, *more]
    variables = os.environ | {"PYTHONPATH": str(site), "VLLM_API_KEY": KEY} | environment
    done = subprocess.run(
        words, env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines], done


def test_every_load_gives_its_figures(site: Path, server: Server) -> None:
    results, done = run(site, server(), "1:20:4,3:20:6,1:50:3")
    assert done.returncode == 0, done.stderr
    head, *loads = results
    assert head["vllm"] == "0.26.0"
    assert [(load["concurrency"], load["prompt_tokens"]) for load in loads] == [
        (1, 20), (3, 20), (1, 50),
    ]  # fmt: skip
    for load in loads:
        assert (load["status"], load["completed"]) == ("measured", load["requests"])
        assert load["measured_prompt_tokens"] == load["prompt_tokens"]
        assert load["tokens_per_second"] * load["seconds"] == pytest.approx(4 * load["requests"])
        assert 0 < load["ttft_ms"]["median"] <= load["ttft_ms"]["p99"]
    said = done.stdout.splitlines()
    assert said[0] == "PROGRESS 0.0000 importing vLLM"
    assert "PROGRESS 0.0000 warming up with prompts of 20 tokens" in said
    assert "PROGRESS 0.3333 load 2/3: 3 at once, prompts of 20 tokens" in said
    assert sum("warming up" in line for line in said) == 2
    assert KEY not in done.stdout + done.stderr


def test_requests_go_to_the_server_itself_and_not_to_a_proxy(site: Path, server: Server) -> None:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    (_, load), _done = run(site, server(), "1:20:2", **proxies)
    assert load["status"] == "measured"


def test_options_reach_the_benchmark(site: Path, server: Server) -> None:
    more = ("--", "--tokenizer-mode", "slow", "--trust-remote-code")
    (_, load), _done = run(site, server(), "1:20:2", *more)
    assert load["status"] == "measured"
    (_, load), _done = run(site, server(), "1:20:2", "--", "--no-such-option")
    assert (load["status"], load["error"]) == ("failed", "SystemExit: 2")


def test_requests_that_fail_are_counted_and_told(site: Path, server: Server) -> None:
    (_, load), done = run(site, server("--fault", "dead-engine"), "2:20:4")
    assert done.returncode == 0
    assert load["status"] == "failed"
    assert load["error"] == "4 of 4 requests failed: Internal Server Error"
    assert "ttft_ms" not in load
    (_, load), _done = run(site, server("--fault", "fails-under-load"), "3:20:6")
    assert load["status"] == "failed"
    assert 0 < load["completed"] < 6
    assert "requests failed: Service Unavailable" in load["error"]
    assert load["tokens_per_second"] > 0


def test_what_vllm_says_of_itself_is_told(site: Path, server: Server) -> None:
    gone = ("--tokenizer", "/srv/gone")
    (_, load), done = run(site, server(), "1:20:2", *gone)
    assert load["status"] == "failed"
    assert load["error"] == "OSError: /srv/gone is not a local folder"
    assert "Namespace(" in done.stderr


def test_the_time_is_kept(site: Path, server: Server) -> None:
    url = server("--token-seconds", "0.05")
    (_, *loads), done = run(site, url, "1:20:2,1:20:900,8:20:16", seconds=6)
    assert done.returncode == 0, done.stderr
    assert [load["status"] for load in loads] == ["measured", "stopped", "skipped"]
    assert loads[1]["error"].startswith("not done in the ")


def test_without_vllm_it_ends_and_says_why(site: Path, server: Server) -> None:
    (site / "vllm" / "benchmarks" / "serve.py").unlink()
    results, done = run(site, server(), "1:20:2")
    assert (results, done.returncode) == ([], 1)
    assert "No module named 'vllm.benchmarks.serve'" in done.stderr


def test_two_at_once_would_measure_each_other(site: Path, server: Server, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    results, done = run(site, server(), "1:20:1", "--alone", str(tmp_path))
    assert (done.returncode, results) == (1, [])
    assert done.stderr.startswith("another benchmark runs here")
    os.close(held)
    results, done = run(site, server(), "1:20:1", "--alone", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [load["status"] for load in results[1:]] == ["measured"]
