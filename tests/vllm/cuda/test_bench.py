"""vLLM's benchmark as our program on the host calls it, against a scripted server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from glm5_deploy.onhost import bench

from tests.fakes import openai_server

MODEL = Path(bench.__file__).parents[1] / "demo" / "model"
KEY = "key-of-the-server"
Server = Callable[..., bench.Server]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Starts a server with flags."""
    started = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]

    def start(*flags: str) -> bench.Server:
        found = openai_server.make_server(
            ["serve", "/models/tiny", "--port", "0", "--api-key", KEY, *flags]
        )
        started.append(found)
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{found.server_address[1]}"
        return bench.Server(url, "tiny", str(MODEL), ("--tokenizer-mode", "hf"))

    # What the benchmark imports asks the stubbed extensions what they can do.
    for name in ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8"):
        monkeypatch.setattr(f"vllm._custom_ops.{name}", lambda _capability: False)
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "")
    bench.prepare()
    yield start
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGALRM, before[1])
    for each in started:
        each.shutdown()
        each.server_close()


def test_a_load_is_measured(server: Server) -> None:
    load = bench.Load(concurrency=3, prompt=40, answer=8, requests=6)
    document = bench.measure(server(), load, 1, 120)
    assert (document["status"], document.get("error")) == ("measured", None)
    assert document["completed"] == 6
    assert document["tokens_per_second"] * document["seconds"] == pytest.approx(6 * 8)
    for name in ("ttft_ms", "tpot_ms"):
        assert 0 < document[name]["median"] <= document[name]["p99"]
    assert document["total_tokens_per_second"] > document["tokens_per_second"]


def test_failed_requests_and_their_reason(server: Server) -> None:
    load = bench.Load(concurrency=2, prompt=20, answer=4, requests=2)
    document = bench.measure(server("--fault", "refuse-all"), load, 1, 120)
    assert document["error"] == "2 of 2 requests failed: Unauthorized"
    assert (document["status"], document["completed"]) == ("failed", 0)


def test_it_stops_when_its_time_is_over(server: Server) -> None:
    load = bench.Load(concurrency=1, prompt=20, answer=2000, requests=50)
    document = bench.measure(server("--token-seconds", "0.05"), load, 1, 5)
    assert (document["status"], document["error"][:12]) == ("stopped", "not done in ")
