"""Kept kernels are launched with what Triton would launch, and only where it would.

In processes of their own, in which nothing is interpreted: see `launching`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.kernel.stand_in import stand_in

T = TypeVar("T")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call a function of this module in a new process."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def call(function: Callable[..., T], *arguments: object) -> T:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(function, *arguments).result()

    return call


# What is launched after `Launched()`: whether that is the same form.
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "grid": ({"grid": (5, 2)}, True),
    "integer": ({"n": 1}, True),
    "integer to 16": ({"n": 16}, True),
    "largest of 32 bits": ({"n": 2**31 - 1}, True),
    "least of 32 bits": ({"n": -(2**31)}, True),
    "beyond 32 bits": ({"n": 2**31}, False),
    "below 32 bits": ({"n": -(2**31) - 1}, False),
    "float": ({"scale": 1.0}, True),
    "specialised integer": ({"m": 1}, False),
    "constant": ({"dim": 128}, False),
    "constant by address": ({"align": 4}, False),
    "pdl": ({"pdl": True}, False),
    "warps": ({"options": (("num_warps", 8), ("num_stages", 2))}, False),
    "stages": ({"options": (("num_warps", 4), ("num_stages", 3))}, False),
    "default stages": ({"options": (("num_warps", 4),)}, False),
    "aligned elsewhere": ({"a": 32}, True),
    "not aligned": ({"a": 8}, False),
    "not aligned, not specialised": ({"b": 8}, True),
    "dtype": ({"a": "int32"}, False),
    "dtype of the other": ({"b": "int32"}, False),
}


def forms_of_changes() -> dict[str, tuple[bool, bool, bool, bool]]:
    """For each: asked Triton; other form for Triton; ran the same; a second time asked nobody."""
    import torch
    import triton
    from glm5_kernel.ops import launch as ops_launch

    stand_in("sm90", set())
    from tests.kernel.launching import Launched, at, note_runs

    def changed(changes: dict[str, Any]) -> Launched:
        made = {
            name: at(value) if name in ("a", "b") and isinstance(value, int)
            else at(0, torch.int32) if value == "int32" else value
            for name, value in changes.items()
        }  # fmt: skip
        return replace(Launched(), **made)

    noted, found = note_runs(), {}
    for name, (changes, _) in CHANGES.items():
        ops_launch._kept.clear()
        Launched()()
        Launched()()
        first, before = noted.runs[-1], noted.asked
        call = changed(changes)
        call()
        asked = noted.asked > before
        ours, before = noted.runs[-1], noted.asked
        call()
        again, silent = noted.runs[-1], noted.asked == before
        call.by_triton()
        theirs = noted.runs[-1]
        same = (
            replace(again, hooks=True) == theirs and replace(ours, hooks=True) == theirs
            and theirs.hooks
        )  # fmt: skip
        found[name] = asked, theirs.key != first.key, same, silent
    Launched()()
    before = noted.asked
    triton.runtime.driver.active.get_current_device = lambda: 1
    triton.runtime.driver.active.get_current_stream = lambda device: 40 + device
    Launched()()
    on_other = noted.asked - before, noted.runs[-1].stream
    Launched()()
    assert (*on_other, noted.asked - before, noted.runs[-1].stream) == (1, 41, 1, 41)
    return found


def test_a_kept_kernel_is_taken_just_where_triton_would(apart: Callable[..., Any]) -> None:
    found = apart(forms_of_changes)
    assert found == {name: (not same, not same, True, True) for name, (_, same) in CHANGES.items()}


def watched() -> list[tuple[int, bool]]:
    """Times Triton was asked and whether it had hooks: nobody listens, a profiler, a test, nobody;
    then where Triton compiles nothing, and where it is another version.
    """
    import triton
    from glm5_kernel.ops import launch as ops_launch

    stand_in("sm90", set())
    from tests.kernel.launching import Launched, note_runs, some_kernel

    noted, found = note_runs(), []

    def launch() -> None:
        before = noted.asked
        Launched()()
        found.append((noted.asked - before, noted.runs[-1].hooks))

    Launched()()
    launch()
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(print)
    launch()
    hooks.remove(print)
    some_kernel.add_pre_run_hook(lambda *_, **__: None)
    launch()
    some_kernel.pre_run_hooks.clear()
    launch()
    compiled = type(some_kernel)._do_compile
    type(some_kernel)._do_compile = lambda *_: None
    ops_launch._kept.clear()
    Launched()()
    assert not ops_launch._kept
    type(some_kernel)._do_compile = compiled
    ops_launch.KEEPS = False
    launch()
    launch()
    assert not ops_launch._kept
    return found


def test_who_watches_launches_is_told_by_triton(apart: Callable[..., Any]) -> None:
    by_triton, kept = (1, True), (0, False)
    assert apart(watched) == [kept, by_triton, by_triton, kept, by_triton, by_triton]


def served(arch: str, heads: int) -> tuple[int, int, list[str]]:
    """Launches of a server's calls, forms, and what differs from Triton's own launches."""
    import torch
    from glm5_kernel.ops.launch import Launch
    from glm5_kernel.ops.topk import workspace_bytes

    from tests.kernel import server_calls as calls

    stand_in(arch, set())
    from tests.kernel.launching import note_runs

    noted, wrong, kept = note_runs(), [], Launch.__call__

    def both(self: Launch, *pointers: Any, **constants: int) -> None:  # noqa: ANN401
        kept(self, *pointers, **constants)
        self._by_triton(pointers, constants)
        ours, theirs = noted.runs[-2:]
        if replace(ours, hooks=True) != theirs:
            wrong.append(f"{ours} {theirs}")
        launches.append(ours.hooks)

    launches: list[bool] = []
    Launch.__call__ = both  # type: ignore[method-assign]
    cpu = torch.device("cpu")
    for _ in range(2):
        for dtype, fp8 in calls.KINDS:
            calls.attend(heads, 2048, dtype, cpu, fp8=fp8)
        space = torch.zeros(workspace_bytes(2 * calls.TOKENS, device=cpu), dtype=torch.uint8)
        calls.decode(2, 2048, space)
        calls.prefill(2048, space)
    return len(launches), sum(launches), wrong


@pytest.mark.parametrize(("arch", "heads"), [("sm120", 8), ("sm90", 16)])
def test_a_server_launches_what_triton_would(
    arch: str, heads: int, apart: Callable[..., Any]
) -> None:
    launches, by_triton, wrong = apart(served, arch, heads)
    assert wrong == []
    assert launches > 1000
    assert 10 < by_triton < 100


def integers_by_kernel() -> dict[str, list[str]]:
    """Integers and floats that Triton specialises, of each kernel."""
    from glm5_kernel.ops import indexer_logits, merge, split, topk_kernel, topk_short

    kernels = (
        split.split_kernel, merge.merge_kernel, topk_kernel.topk_kernel,
        topk_short.short_topk_kernel, indexer_logits.paged_kernel, indexer_logits.prefill_kernel,
    )  # fmt: skip
    return {
        kernel.__name__: [
            each.name
            for each in kernel.params
            if not (each.is_constexpr or each.do_not_specialize or each.name.startswith("p_"))
        ]
        for kernel in kernels
    }


def test_no_integer_is_specialised(apart: Callable[..., Any]) -> None:
    found = apart(integers_by_kernel)
    assert found.pop("split_kernel") == ["sm_scale_log2"]
    assert len(found) == 5
    assert not any(found.values())
