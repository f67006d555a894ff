"""Every configuration compiles for its GPU, without one, and fits it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from glm5_kernel.ops.compile_report import Case, Resources, cases, compile_case
from glm5_kernel.ops.configs import SHARED_LIMIT, TABLES


def chosen_cases() -> list[Case]:
    """All forms for SM120; elsewhere each configuration, in the form that needs most."""
    found = cases("sm120")
    for arch in sorted(TABLES.keys() - {"sm120"}):
        found += [c for c in cases(arch) if c.spans == c.block_table]
    return found


CASES = chosen_cases()


def name(case: Case) -> str:
    c = case.config
    form = ("-table" if case.block_table else "") + ("-spans" if case.spans else "")
    return f"{case.arch}-{case.kv}-{c.heads}x{c.tile}-{c.warps}w-{c.stages}s{form}"


@pytest.fixture(scope="module")
def compiling() -> Iterator[ProcessPoolExecutor]:
    """Processes of their own: in this one kernels may be interpreted."""
    interpret = os.environ.pop("TRITON_INTERPRET", None)
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            yield pool
            pool.shutdown(cancel_futures=True)
    finally:
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret


FUTURES: dict[Case, Future[Resources]] = {}


def compiled(pool: ProcessPoolExecutor, case: Case) -> Resources:
    """Compile, and start on the next case meanwhile."""
    here = CASES.index(case)
    for ahead in CASES[here : here + 2]:
        if ahead not in FUTURES:
            FUTURES[ahead] = pool.submit(compile_case, ahead)
    return FUTURES[case].result()


@pytest.mark.parametrize("case", CASES, ids=name)
def test_fits_and_does_not_spill(case: Case, compiling: ProcessPoolExecutor) -> None:
    needs = compiled(compiling, case)
    assert needs.stack_bytes == 0
    assert needs.shared_bytes <= SHARED_LIMIT[case.arch]
    assert needs.resident >= 1
    # The table counts on this figure for how many programs fit.
    assert needs.shared_bytes == case.config.shared
