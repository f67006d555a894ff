"""What is compiled before serving: every form that calls of a server take, and nothing is read."""

from __future__ import annotations

import pytest
import torch
from glm5_kernel.ops import indexer, warmup
from glm5_kernel.ops.configs import SHARED, Device, Kv, plan
from glm5_kernel.ops.indexer_configs import ShortTopkConfig, TopkPlan, topk_forms, topk_plan
from hypothesis import given
from hypothesis import strategies as st

CPU = torch.device("cpu")
GPUS = {"sm90": 132, "sm120": 188, "sm89": 142, "sm100": 148}


@pytest.fixture(params=sorted(GPUS))
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Device]:
    found = request.param, Device(GPUS[request.param], SHARED[request.param])
    monkeypatch.setattr(warmup, "device_table", lambda _: found)
    return found


@pytest.mark.parametrize(("kv", "heads", "topk"), [("16bit", 8, 2048), ("fp8", 64, 512)])
def test_attention_has_every_form(gpu: tuple[str, Device], kv: Kv, heads: int, topk: int) -> None:
    arch, device = gpu
    plans = warmup.attention_plans(CPU, kv, 4096, heads, topk, deterministic=False)
    forms = {(each.config, each.spans, (each.parts - 1).bit_length()) for each in plans}
    assert len(forms) == len(plans) < 16
    for tokens in (1, 2, 3, 7, 16, 33, 64, 100, 129, 500, 1000, 2048, 4096):
        chosen = plan(arch, kv, tokens, heads, topk, device)
        assert (chosen.config, chosen.spans, (chosen.parts - 1).bit_length()) in forms


@pytest.mark.parametrize(("rows", "longest"), [(8192, 200_000), (8192, 30_000), (16, 9000), (1, 1)])
def test_the_top_k_has_every_form(gpu: tuple[str, Device], rows: int, longest: int) -> None:
    arch, device = gpu
    found = topk_forms(arch, rows, longest, device.processors)
    forms = {topk_form(width, each) for width, each in found}
    assert len(forms) == len(found)
    assert all(width <= longest for width, _ in found)

    @given(st.integers(1, rows), st.integers(1, longest))
    def check(rows: int, width: int) -> None:
        assert topk_form(width, topk_plan(arch, rows, width, device.processors)) in forms

    check()


def topk_form(width: int, plan: TopkPlan) -> tuple[object, ...]:
    config = plan.config
    if isinstance(config, ShortTopkConfig):
        assert width <= config.room
        return (config,)
    return config, plan.split, config.sample(width)


@pytest.mark.parametrize("fp8", [False, True])
def test_attention_is_called_with_nothing_to_read(fp8: bool) -> None:
    called = warmup.warm_attention(40, 16, 70, torch.bfloat16, CPU, fp8=fp8)
    kv: Kv = "fp8" if fp8 else "16bit"
    plans = warmup.attention_plans(CPU, kv, 40, 16, 70, deterministic=False)
    assert called == 2 * len(plans)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_the_indexer_is_called_with_nothing_to_read(default: torch.dtype) -> None:
    """vLLM makes the model's dtype torch's default while it builds it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert warmup.warm_indexer(20, 300, 900, 32, 16, 2, CPU) >= 5
    finally:
        torch.set_default_dtype(before)


def test_chunks_begin_at_multiples_of_16_bytes() -> None:
    for room, wanted in ((10, 8), (7, 4), (3, 3), (1, 1), (1000, 21)):
        step, _ = indexer._chunks(21, 5, None, room * 5 * 4, CPU)
        assert step == wanted
