"""What benchmarks/indexer.py makes of its rounds; measuring needs a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "indexer.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])  # it puts its folders in front
    spec = importlib.util.spec_from_file_location("indexer_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_figure_is_the_median_of_rounds_with_inputs_of_their_own(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    times = iter([9.5, 7.8, 8.004])

    def measure_case(
        _case: int, op: str, _replays: int, _peers: bool
    ) -> dict[str, dict[str, float]]:
        us = next(times)
        return {op: {"ours": 1.0}, "topk": {"ours": us}, "logits+topk": {"ours": us + 1}}

    def make() -> int:
        made.append(len(made))
        return made[-1]

    monkeypatch.setattr(benchmark, "measure_case", measure_case)
    found = benchmark.measure_rounds(make, "paged_logits", 11, False, 3)
    assert made == [0, 1, 2]
    rows = benchmark.rows_of(found, (8, 32_768), (4e12, 8e14))
    by_op = {row["op"]: row for row in rows}
    assert by_op["topk"]["us"] == 8.0
    assert by_op["topk"]["rounds"] == [9.5, 7.8, 8.0]
    assert by_op["topk"]["floor_us"] == pytest.approx(4 * 8 * 32_768 / 4e6, abs=0.01)
    assert by_op["logits+topk"]["us"] == 9.0
    assert "floor_us" not in by_op["logits+topk"]
    assert "0.50 of persistent_topk (1.0)" in benchmark.verdict(
        {"ours": by_op["topk"]["us"], "persistent_topk": 16.0}, benchmark.AIMS["topk"][0]
    )
