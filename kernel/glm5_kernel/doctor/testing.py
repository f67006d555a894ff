"""Runs the self-tests on every GPU, each GPU in processes of its own, and makes one row of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from glm5_kernel.doctor.child import Ended, children_end_with_it
from glm5_kernel.doctor.report import Check, Gpu, Status, failed, passed, skipped
from glm5_kernel.doctor.selftest import FULL, NEEDED, TESTS, SelfTest

Run = Callable[[Sequence[str], float], Ended]
_CRASHED = "the kernel ends the process on this GPU: do not serve with it; report this"
_SLOW = "compiling takes long on a slow processor: try again, or raise --timeout"


Rows = dict[str, dict[str, Any]]
"""What the tests gave on one GPU, by test: status, detail, hint; where compared, the error."""


def self_tests(gpus: Sequence[Gpu], limit: float, run: Run) -> tuple[Check, ...]:
    """All tests on all GPUs within `limit` seconds, a row for each test.

    The first GPU's processes fill Triton's cache; the others then find the kernels there.
    """
    until = time.monotonic() + limit
    outcomes = {gpu.index: _on_gpu(gpu, until, run) for gpu in gpus[:1]}
    with ThreadPoolExecutor(max(len(gpus), 1)) as pool, children_end_with_it():
        found = pool.map(lambda gpu: (gpu.index, _on_gpu(gpu, until, run)), gpus[1:])
        outcomes |= dict(found)
    return tuple(_row(test, outcomes) for test in TESTS)


def _on_gpu(gpu: Gpu, until: float, run: Run) -> Rows:
    """Start anew without the test that ended its process, until none is left."""
    if gpu.free is not None and gpu.free < NEEDED:
        return {test.name: _skipped(FULL) for test in TESTS}
    rows: Rows = {}
    while left := [test.name for test in TESTS if test.name not in rows]:
        seconds = until - time.monotonic()
        if seconds <= 0:
            return rows | {name: _skipped("the time was over") for name in left}
        _learn(rows, left, run(["selftest", str(gpu.index), *left], seconds))
    return rows


def _learn(rows: Rows, left: Sequence[str], ended: Ended) -> None:
    """At least one of the tests that were left has a row after this."""
    begun = left[0]
    for answer in ended.answers:
        if "unavailable" in answer:
            rows |= {name: _skipped(answer["unavailable"]) for name in left}
        elif "begin" in answer:
            begun = answer["begin"]
        elif "name" in answer:
            rows[answer["name"]] = answer
    silent = not any(name in rows for name in left)
    if (ended.returncode != 0 or silent) and begun not in rows:
        hint = _SLOW if ended.returncode is None else _CRASHED
        rows[begun] = {"status": "failed", "detail": ended.why(), "hint": hint}


def _skipped(reason: str) -> dict[str, Any]:
    return {"status": "skipped", "detail": reason}


def _row(test: SelfTest, outcomes: dict[int, Rows]) -> Check:
    """One row of what a test gave on all GPUs: the worst of it, and where."""
    if not outcomes:
        return skipped(test.name, "no GPU")
    found = {index: rows[test.name] for index, rows in outcomes.items()}
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
