"""Every configuration compiles for its GPU, without one, and fits it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from glm5_kernel.ops.compile_report import Case, Resources, cases, compile_case
from glm5_kernel.ops.configs import (
    DEEP,
    SHARED,
    SHARED_LIMIT,
    TABLES,
    TWO_WARPS,
    Device,
    Load,
)

from tests.kernel.compiling import compiled

SPILLED = {TWO_WARPS: 16, DEEP: 24}
"""Bytes of stack that the forms with a block table need, outside of their loop."""
OLDER = ("sm80", "sm86", "sm89", "sm100")


def chosen_cases() -> list[Case]:
    """All forms for SM120; elsewhere each configuration as a server calls it, and spanning."""
    found = cases("sm120")
    for arch in sorted(TABLES.keys() - {"sm120"}):
        found += [c for c in cases(arch) if c.block_table]
    return found


def is_repetition(case: Case) -> bool:
    """Whether a plain run compiles the same code for a GPU that is alike, or a harder form.

    SM90 and SM120 have all. SM86 is SM80 in the eyes of the compiler, with SM120's shared memory;
    SM89 adds instructions for fp8, SM100 matrix instructions of its own.
    """
    if case.arch not in OLDER:
        return False
    if case.arch == "sm86" or (case.arch == "sm89" and case.kv != "fp8"):
        return True
    small = case.config.heads == 16 and case.config.tile == 32
    return not case.spans and (small or (case.arch == "sm100" and case.config.heads == 16))


def name(case: Case) -> str:
    c = case.config
    form = ("-table" if case.block_table else "") + ("-spans" if case.spans else "")
    return f"{case.arch}-{case.kv}-{c.heads}x{c.tile}-{c.warps}w-{c.stages}s{form}"


@pytest.fixture(scope="module")
def resources(request: pytest.FixtureRequest) -> Iterator[dict[Case, Future[Resources]]]:
    with compiled(request, compile_case) as found:
        yield found


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if is_repetition(case) else ())
        for case in chosen_cases()
    ],
    ids=name,
)
def test_fits_and_does_not_spill(case: Case, resources: dict[Case, Future[Resources]]) -> None:
    needs = resources[case].result()
    assert needs.stack_bytes <= (SPILLED.get(case.config, 0) if case.block_table else 0)
    assert needs.shared_bytes <= SHARED_LIMIT[case.arch]
    # Plans count on these figures for how many programs fit.
    assert needs.shared_bytes == case.config.shared
    device = Device(1, SHARED[case.arch])
    assert needs.resident >= Load(1, 1, 1, device).resident(case.config)
