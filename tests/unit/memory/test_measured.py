"""What vLLM's log says of memory, beside a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from glm5_deploy.memory.measured import Measured, read_measured
from glm5_deploy.memory.plan import GpuMemory, ModelShape, plan
from glm5_deploy.memory.settings import Settings

from tests.unit.memory.test_plan import GIB, MODEL

LOG = """\
(Worker_TP0 pid=1) INFO gpu_model_runner.py:5348] Model loading took 39.8 GiB memory and 80 seconds
(Worker_TP1 pid=2) INFO gpu_model_runner.py:5348] Model loading took 40.2 GiB memory and 80 seconds
(Worker_TP0 pid=1) INFO gpu_worker.py:561] Available KV cache memory: 41.5 GiB
(Worker_TP1 pid=2) INFO gpu_worker.py:561] Available KV cache memory: 41.0 GiB
(EngineCore pid=3) INFO kv_cache_utils.py:2177] GPU KV cache size: 440,192 tokens
(Worker_TP0 pid=1) INFO gpu_model_runner.py:6845] Graph capturing finished in 21 secs, took 0.61 GiB
"""


def test_the_largest_worker_counts_and_the_smallest_cache() -> None:
    found = read_measured(LOG.splitlines())
    assert found.kv_tokens == 440_192
    assert found.weights == int(40.2 * GIB)
    assert found.kv == int(41.0 * GIB)
    assert found.graphs == int(0.61 * GIB)
    assert read_measured([]) == Measured()


def test_ratios_are_of_what_was_measured() -> None:
    made = plan(MODEL, Settings(1, 131_072, 32, 8192), [GpuMemory(0, int(95.6 * GIB))])
    ratios = read_measured(LOG.splitlines()[:5]).ratios(made)
    assert ratios["weights"] == pytest.approx(made.weights / (40.2 * GIB), rel=1e-3)
    assert "graphs" not in ratios
    assert Measured().ratios(made) == {}


RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
WALKED = ModelShape(
    tp=1, weights=0, kv={"fp8": 1576}, possible={}, hidden=6144, heads=64, head_values=448,
    vocab=8192, intermediate=12_288, moe_intermediate=2048, experts_used=8, context=8192,
    indexer_row=132, topk=2048,
)  # fmt: skip
"""What tests/gpu/host deploys: GLM-5's widths in two layers."""


@pytest.mark.parametrize(("name", "tp"), [("h200", 1), ("h200-x2", 2)])
def test_plans_are_as_vllm_reported_on_h200s(name: str, tp: int) -> None:
    """The plan as it is computed today, beside what vLLM said in the walk that was recorded."""
    told = json.loads((RESULTS / f"host-{name}.json").read_text())["memory"]
    measured = {key: told[was] / told["planned_over_measured"][key] for key, was in (
        ("weights", "weights"), ("kv", "kv_cache"), ("kv_tokens", "kv_tokens"),
    )}  # fmt: skip
    settings = Settings(tp, 8192, 32, 8192, utilization=0.3, kv_dtype="fp8", eager=True)
    gpu = GpuMemory(0, 143_771 << 20)
    tables = plan(WALKED, settings, [gpu]).weights
    model = replace(WALKED, tp=tp, weights=told["weights"] - tables)
    made = plan(model, settings, [gpu] * tp)
    assert made.weights == pytest.approx(measured["weights"], rel=0.03)
    assert made.kv == pytest.approx(measured["kv"], rel=0.02)
    assert made.kv_tokens == pytest.approx(measured["kv_tokens"], rel=0.02)
    assert made.kv_tokens <= measured["kv_tokens"], "more was promised than there was"
