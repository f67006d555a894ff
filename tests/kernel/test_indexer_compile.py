"""Every configuration of the indexer's kernels compiles for its GPU, without one, and fits it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import glm5_kernel
import pytest
from glm5_kernel.ops.configs import SHARED_LIMIT
from glm5_kernel.ops.indexer_compile_report import Case, Needs, cases, compile_case
from glm5_kernel.ops.indexer_configs import TOPK, PrefillConfig, ShortTopkConfig, TopkConfig

from tests.kernel.compiling import compiled

CASES = [case for arch in ("sm120", "sm90", "sm100", "sm89") for case in cases(arch)]
WITHOUT_OPT_IN = 49_152
"""Shared memory that a kernel may use whose dynamic part alone is less: Triton asks for no more."""

LAID_ASIDE = 48
"""Bytes that a thread of the top-k may put aside, once a row, where two programs of 16 warps on a
multiprocessor leave it 64 registers: quicker on an H200 than twice 8 warps, or one program, with
128."""


def name(case: Case) -> str:
    kind = type(case.config).__name__.removesuffix("Config").lower()
    config = case.config
    size = config.room if isinstance(config, ShortTopkConfig) else config.tile
    return f"{case.arch}-{kind}-{size}-{config.warps}w-{case.form.replace(' ', '-')}"


def is_repetition(case: Case) -> bool:
    """Whether a plain run compiles the same configuration for the GPU that its table comes from.

    SM100's are SM90's, SM89's logits SM120's. Of SM100 the logits of prefills and of four tokens
    are compiled always: its matrix instructions are its own.
    """
    if isinstance(case.config, TopkConfig | ShortTopkConfig):
        return case.arch in ("sm89", "sm100") and case.form != "split decode"
    hardest = isinstance(case.config, PrefillConfig) or (case.config.tile, case.form) == (128, "4")
    return case.arch in ("sm89", "sm100") and not hardest


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[dict[Case, Future[Needs]]]:
    with compiled(request, compile_case) as cases_under_way:
        yield cases_under_way


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if is_repetition(case) else ()) for case in CASES],
    ids=name,
)
def test_fits_and_does_not_spill(case: Case, found: dict[Case, Future[Needs]]) -> None:
    needs = found[case].result()
    is_many = case.config == TOPK[case.arch].many
    assert needs.stack_bytes <= (LAID_ASIDE if is_many else 0)
    assert needs.shared_bytes <= SHARED_LIMIT[case.arch]
    if isinstance(case.config, TopkConfig | ShortTopkConfig):
        assert needs.shared_bytes <= WITHOUT_OPT_IN
        # A conversion behind `_claim` would let Triton repeat it, and it counts.
        assert needs.conversions == 0
    if isinstance(case.config, TopkConfig):
        threads = 32 * case.config.warps * case.config.programs
        assert needs.registers * threads <= 65_536  # of a multiprocessor


def test_warps_suit_the_histograms() -> None:
    """A thread has four bins at least; a program's threads no more than a tile's values."""
    for table in TOPK.values():
        for config in table.long:
            assert config.warps <= 16
            assert 32 * config.warps <= min(config.tile, 1024)
            assert config.list + config.room < 2**31 // 264
            assert config.room <= config.held
        for short in table.short:
            assert short.warps <= 32
            assert 32 * short.warps <= short.room


@pytest.mark.parametrize("name", ["compile_report", "indexer_compile_report"])
def test_help_compiles_nothing(name: str) -> None:
    command = [sys.executable, "-m", f"glm5_kernel.ops.{name}", "--help"]
    env = os.environ | {"PYTHONPATH": str(Path(glm5_kernel.__file__).parents[1])}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert said.startswith("usage:")
