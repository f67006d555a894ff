"""The doctor's self-tests on a CUDA device."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from glm5_kernel.doctor import environment, testing
from glm5_kernel.doctor.child import run_child
from glm5_kernel.doctor.gpus import SERVING, gpus_of
from glm5_kernel.doctor.report import Check, Gpu
from glm5_kernel.doctor.selftest import FULL, NEEDED, TESTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
POISON = """
import torch
from glm5_kernel.doctor.cases import *
def merge(device):
    return float(torch.zeros(4, device=device)[torch.tensor([99], device=device)])
"""
PATCH = "from glm5_kernel.doctor import selftest\nselftest._CASES = 'poisoned_cases'\n"


def first_gpu() -> Gpu:
    return gpus_of(run_child(["gpus"], 120.0), environment.free_memory())[0]


def rows(gpu: Gpu) -> dict[str, Check]:
    return {row.name: row for row in testing.self_tests([gpu], 240.0, run_child)}


def test_every_kernel_passes_within_the_memory_that_is_promised() -> None:
    gpu = first_gpu()
    with least_free(gpu) as least:
        found = rows(gpu)
    wanted = {t.name: "passed" if gpu.level >= t.since else "skipped" for t in TESTS}
    assert {name: row.status for name, row in found.items()} == wanted, found
    assert gpu.level < SERVING or "skipped" not in wanted.values()
    if least:  # nvidia-smi is there
        assert gpu.free is not None
        assert gpu.free - min(least) < NEEDED


def test_a_full_gpu_is_skipped() -> None:
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - NEEDED // 4, dtype=torch.uint8, device="cuda")
    try:
        found = rows(first_gpu())
    finally:  # a failure's traceback would keep it from the other tests
        del taken
        torch.cuda.empty_cache()
    assert {(row.status, row.detail) for row in found.values()} == {("skipped", FULL)}


def test_a_fault_does_not_reach_the_other_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poisoned_cases.py").write_text(POISON)
    (tmp_path / "sitecustomize.py").write_text(PATCH)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), *environment_paths()]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    found = rows(first_gpu())
    assert [name for name, row in found.items() if row.status == "failed"] == ["merge"]
    assert "device-side assert" in found["merge"].detail


def environment_paths() -> list[str]:
    """Where glm5_kernel lies, for a child that pytest's own path does not reach."""
    import glm5_kernel

    return [str(Path(glm5_kernel.__file__).parents[1])]


@contextmanager
def least_free(gpu: Gpu) -> Iterator[list[int]]:
    """Samples of what is free of a GPU meanwhile."""
    samples: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.05):
            samples.extend(v for uuid, v in environment.free_memory().items() if uuid == gpu.uuid)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
