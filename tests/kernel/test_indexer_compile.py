"""Every configuration of the indexer's kernels compiles for its GPU, without one, and fits it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from glm5_kernel.ops.configs import SHARED_LIMIT
from glm5_kernel.ops.indexer_compile_report import Case, Needs, cases, compile_case
from glm5_kernel.ops.indexer_configs import TOPK, TopkConfig

CASES = [case for arch in ("sm120", "sm90", "sm100", "sm89") for case in cases(arch)]
WITHOUT_OPT_IN = 49_152
"""Shared memory that a kernel may use whose dynamic part alone is less: Triton asks for no more."""


def name(case: Case) -> str:
    kind = type(case.config).__name__.removesuffix("Config").lower()
    return f"{case.arch}-{kind}-{case.config.tile}-{case.config.warps}w-{case.form}"


@pytest.fixture(scope="module")
def compiled() -> Iterator[dict[Case, Future[Needs]]]:
    """In processes of their own: in this one kernels may be interpreted."""
    interpret = os.environ.pop("TRITON_INTERPRET", None)
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            yield {case: pool.submit(compile_case, case) for case in CASES}
            pool.shutdown(cancel_futures=True)
    finally:
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret


@pytest.mark.parametrize("case", CASES, ids=name)
def test_fits_and_does_not_spill(case: Case, compiled: dict[Case, Future[Needs]]) -> None:
    needs = compiled[case].result()
    assert needs.stack_bytes == 0
    assert needs.shared_bytes <= SHARED_LIMIT[case.arch]
    if isinstance(case.config, TopkConfig):
        assert needs.shared_bytes <= WITHOUT_OPT_IN
        # A conversion behind `_claim` would let Triton repeat it, and it counts.
        assert needs.conversions == 0


def test_warps_suit_the_histograms() -> None:
    """A thread has four bins at least; a program's threads no more than a tile's values."""
    for table in TOPK.values():
        for config in table.all:
            assert config.warps <= 16
            assert 32 * config.warps <= min(config.tile, 1024)
            assert config.list + config.room < 2**31 // 264
