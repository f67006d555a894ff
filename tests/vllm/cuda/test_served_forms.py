"""A server meets no form of our kernels that its start has not compiled: vLLM's own calls.

vLLM's scheduler, model runner, metadata builders and model serve on a CPU, in a process of its own
in which Triton tells forms apart as on a GPU, but compiles none.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.gpu.serve import cases, model
from tests.vllm.cuda.setups import Served, Setup

pytestmark = pytest.mark.primary
FP8 = "fp8_ds_mla"

SM120 = {
    Setup(kv=FP8, drafts=1, logits_mb=1): {"slice", "decode 2", "mixed"},
    Setup(graphs=True, drafts=1, heads=16): {"graph", "decode 2", "decode unlike", "mixed"},
    Setup(invariant=True, mqa=True, chunk=2048): {"prefill", "decode 1", "mixed"},
    Setup(longest=80_000, topk=512): {"prefill", "decode 1", "mixed"},
}
MORE_OF_SM120 = {
    Setup(dtype="float16", drafts=3): {"prefill", "decode 1", "mixed"},
    Setup(kv=FP8, invariant=True, graphs=True): {"graph", "decode 1", "mixed"},
    Setup(heads=64, topk=512, longest=3000): {"prefill", "decode 1", "mixed"},
    Setup(drafts=1, mtp=True, graphs=True): {"graph", "decode 1", "decode 2", "mixed"},
    Setup(drafts=3, mtp=True, kv=FP8): {"prefill", "decode 1", "mixed"},
}
SM90 = {
    Setup(kv=FP8, drafts=1, logits_mb=64, longest=80_000): {"slice", "decode 2", "mixed"},
    Setup(graphs=True, dtype="float16", drafts=3): {"graph", "decode 1", "mixed"},
    Setup(heads=32, mqa=True, topk=512, chunk=512): {"prefill", "decode 1", "mixed"},
    Setup(heads=128, invariant=True, longest=3000): {"prefill", "decode 1", "mixed"},
}
SM100 = {
    Setup(drafts=3): {"decode 2", "decode 3", "decode 4", "mixed"},
    Setup(kv=FP8, graphs=True, drafts=5, logits_mb=1): {"graph", "slice", "mixed"},
    Setup(drafts=3, mtp=True, dtype="float16"): {"decode 1", "decode 4", "mixed"},
}


def on_the_gpu(case: cases.Case) -> Setup:
    """As the run on a GPU serves the case (`tests/gpu/serve`), where a new form is an error."""
    return Setup(
        heads=model.HEADS,
        dtype="float16" if case.kv == "fp16" else "bfloat16",
        kv=cases.KV[case.kv],
        topk=case.topk,
        drafts=case.drafts,
        graphs=case.graphs,
        invariant=case.invariant,
        mqa=case.mqa,
        chunk=case.chunk,
        longest=model.POSITIONS - 200,
    )


PARITY = {on_the_gpu(case): {"decode 1", "mixed"} for case in cases.PARTS["ours"]}


def served(arch: str, setups: list[Setup]) -> list[Served]:
    """In the process of its own."""
    from tests.vllm.cuda import engine

    return engine.serve(arch, setups)


@pytest.mark.parametrize(
    ("arch", "setups"),
    [
        ("sm120", SM120),
        pytest.param("sm120", MORE_OF_SM120, marks=pytest.mark.slow),
        pytest.param("sm90", SM90, marks=pytest.mark.slow),
        pytest.param("sm90", PARITY, marks=pytest.mark.slow),
        pytest.param("sm89", SM120, marks=pytest.mark.slow),
        pytest.param("sm100", SM100, marks=pytest.mark.slow),
    ],
)
def test_a_server_meets_no_new_form(
    arch: str, setups: dict[Setup, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(served, arch, list(setups)).result()
    assert [(each.setup, *form) for each in found for form in each.new] == []
    assert all(each.forms >= 10 for each in found)
    missed = {each.setup: setups[each.setup] - each.met for each in found}
    assert not any(missed.values()), missed
