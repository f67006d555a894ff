"""Triton tells forms apart as it does on a GPU, but compiles none: after the warm-up there is no
new one. Each GPU is stood in for in a process of its own, in which nothing is interpreted.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.kernel.stand_in import Form, stand_in


def new_forms(arch: str, heads: int) -> dict[str, tuple[int, list[Form]]]:
    """For each case: forms that the warm-up called, and those that a server calls beside them."""
    import torch
    from glm5_kernel.ops.topk import workspace_bytes
    from glm5_kernel.ops.warmup import warm_attention, warm_indexer

    from tests.kernel import server_calls as calls

    forms: set[Form] = set()
    stand_in(arch, forms)
    cpu, found = torch.device("cpu"), {}

    def compare(case: str, warm: Any, serve: Any) -> None:  # noqa: ANN401
        forms.clear()
        warm()
        known = set(forms)
        serve()
        found[case] = len(known), sorted(forms - known)

    for topk in (512, 2048):
        for dtype, fp8 in calls.KINDS:
            given = (heads, topk, dtype, cpu)
            compare(
                f"attention {topk} {dtype} {fp8}",
                lambda given=given, fp8=fp8: warm_attention(calls.TOKENS, *given, fp8=fp8),
                lambda given=given, fp8=fp8: calls.attend(*given, fp8=fp8),
            )
    space = torch.zeros(workspace_bytes(2 * calls.TOKENS, device=cpu), dtype=torch.uint8)
    for next_n in (1, 2, 4):
        compare(
            f"indexer {next_n}",
            lambda n=next_n: warm_indexer(
                calls.TOKENS, calls.CONTEXT, calls.KEYS, calls.INDEX_HEADS, 2048, n, cpu,
                workspace=space,
            ),
            lambda n=next_n: (calls.decode(n, 2048, space), calls.prefill(2048, space)),
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("arch", "heads"),
    [
        ("sm120", 8),
        ("sm90", 16),
        pytest.param("sm120", 64, marks=pytest.mark.slow),
        pytest.param("sm89", 8, marks=pytest.mark.slow),
        pytest.param("sm100", 128, marks=pytest.mark.slow),
    ],
)
def test_a_server_meets_no_new_form(arch: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(new_forms, arch, heads).result()
    assert len(found) == 9
    assert all(count >= 5 for count, _ in found.values())
    assert {case: new for case, (_, new) in found.items() if new} == {}
