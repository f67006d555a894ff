"""What vLLM's log says of memory, beside a plan."""

from __future__ import annotations

import pytest
from glm5_deploy.memory.measured import Measured, read_measured
from glm5_deploy.memory.plan import GpuMemory, plan
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
