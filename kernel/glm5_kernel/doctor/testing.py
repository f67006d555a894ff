"""Runs the self-tests on every GPU, each GPU in processes of its own, and makes one row of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from glm5_kernel.doctor.child import Ended, run_child
from glm5_kernel.doctor.report import Check, Gpu, Status, failed, passed, skipped
from glm5_kernel.doctor.selftest import TESTS, SelfTest

Run = Callable[[Sequence[str], float], Ended]
_CRASHED = "the kernel ends the process on this GPU: do not serve with it; report this"
_SLOW = "compiling takes long on a slow processor: try again, or raise --timeout"


@dataclass
class Outcome:
    """What the tests gave on one GPU.

    Attributes:
        rows: by test; `error` is there where something was compared.
        free: bytes of its memory that nobody used before.
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    free: int | None = None


def self_tests(
    gpus: Sequence[Gpu], limit: float, run: Run = run_child
) -> tuple[tuple[Check, ...], dict[int, int | None]]:
    """All tests on all GPUs within `limit` seconds: a row for each test, and each GPU's free bytes.

    The first GPU's processes fill Triton's cache; the others then find the kernels there.
    """
    until = time.monotonic() + limit
    outcomes = {gpu.index: _on_gpu(gpu.index, until, run) for gpu in gpus[:1]}
    with ThreadPoolExecutor(max(len(gpus), 1)) as pool:
        others = [gpu.index for gpu in gpus[1:]]
        outcomes |= zip(others, pool.map(lambda i: _on_gpu(i, until, run), others), strict=True)
    rows = tuple(_row(test, outcomes) for test in TESTS)
    return rows, {index: outcome.free for index, outcome in outcomes.items()}


def _on_gpu(index: int, until: float, run: Run) -> Outcome:
    """Start anew without the test that ended its process, until none is left."""
    outcome = Outcome()
    while left := [test.name for test in TESTS if test.name not in outcome.rows]:
        seconds = until - time.monotonic()
        if seconds <= 0:
            outcome.rows |= {name: _skipped("the time was over") for name in left}
            break
        _learn(outcome, left, run(["selftest", str(index), *left], seconds))
    return outcome


def _learn(outcome: Outcome, left: Sequence[str], ended: Ended) -> None:
    """At least one of the tests that were left has a row after this."""
    begun = left[0]
    for answer in ended.answers:
        if "unavailable" in answer:
            outcome.rows |= {name: _skipped(answer["unavailable"]) for name in left}
        elif "begin" in answer:
            begun = answer["begin"]
        elif "name" in answer:
            outcome.rows[answer["name"]] = answer
        elif "free" in answer and outcome.free is None:
            outcome.free = answer["free"]
    # A process that ends well without a row for a test it began does not exist.
    crashed = ended.returncode != 0 or not any(name in outcome.rows for name in left)
    if crashed and begun not in outcome.rows:
        hint = _SLOW if ended.returncode is None else _CRASHED
        outcome.rows[begun] = {"status": "failed", "detail": ended.why(), "hint": hint}


def _skipped(reason: str) -> dict[str, Any]:
    return {"status": "skipped", "detail": reason}


def _row(test: SelfTest, outcomes: dict[int, Outcome]) -> Check:
    """One row of what a test gave on all GPUs: the worst of it, and where."""
    if not outcomes:
        return skipped(test.name, "no GPU")
    found = {index: outcome.rows[test.name] for index, outcome in outcomes.items()}
    bad = _with(found, "failed")
    if bad:
        first = found[bad[0]]
        return failed(test.name, f"{_where(bad, found)}{first['detail']}", first["hint"])
    good, idle = _with(found, "passed"), _with(found, "skipped")
    details = []
    if good:
        error = max(found[index]["error"] for index in good)
        details.append(f"{_where(good, found)}error {error:.1e}, limit {test.limit:.0e}")
    for reason in dict.fromkeys(found[index]["detail"] for index in idle):
        same = [index for index in idle if found[index]["detail"] == reason]
        details.append(f"{_where(same, found)}{reason}")
    text = "; ".join(details)
    return passed(test.name, text) if good else skipped(test.name, text)


def _with(found: dict[int, dict[str, Any]], status: Status) -> list[int]:
    return [index for index, row in found.items() if row["status"] == status]


def _where(some: Sequence[int], found: dict[int, dict[str, Any]]) -> str:
    """Which GPUs, where it is not all of them."""
    if len(some) == len(found):
        return ""
    return f"GPU {', '.join(map(str, some))}: "
