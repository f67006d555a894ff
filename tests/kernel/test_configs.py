"""How work is shared out: every tile once, no step between neighbouring batch sizes."""

from __future__ import annotations

import pytest
from glm5_kernel.ops.configs import (
    NARROW,
    SHARED,
    TABLES,
    Device,
    Load,
    Plan,
    architecture,
    plan,
)
from hypothesis import given
from hypothesis import strategies as st

DEVICES = {
    "sm80": Device(108, SHARED["sm80"]),
    "sm90": Device(132, SHARED["sm90"]),
    "sm120": Device(188, SHARED["sm120"]),
}


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm80"), ((8, 6), "sm86"), ((8, 9), "sm89"), ((9, 0), "sm90"),
        ((10, 0), "sm100"), ((10, 3), "sm100"), ((12, 0), "sm120"), ((12, 1), "sm120"),
    ],
)  # fmt: skip
def test_architecture(capability: tuple[int, int], name: str) -> None:
    assert architecture(capability) == name
    assert name in TABLES


def test_an_old_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device: got compute capability 7.5; allowed: 8.0"):
        architecture((7, 5))


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 150))
def test_parts_of_a_token_are_counted_as_the_kernel_counts(
    tokens: int, units: int, share: int
) -> None:
    chosen = Plan(NARROW, units, share)
    seen: dict[int, list[int]] = {t: [] for t in range(tokens)}
    for program in range(chosen.programs(tokens)):
        for unit in range(program * share, min((program + 1) * share, tokens * units)):
            part = program - (unit // units) * units // share
            seen[unit // units].append(part)
    for parts in seen.values():
        assert len(parts) == units
        assert sorted(set(parts)) == list(range(max(parts) + 1))
        assert max(parts) < chosen.parts


@given(
    st.sampled_from(sorted(DEVICES)),
    st.sampled_from(["16bit", "fp8"]),
    st.integers(1, 3000),
    st.integers(1, 128),
    st.integers(1, 4096),
)
def test_a_plan_covers_the_top_k(arch: str, kv: str, tokens: int, heads: int, topk: int) -> None:
    chosen = plan(arch, kv, tokens, heads, topk, DEVICES[arch])  # type: ignore[arg-type]
    assert chosen.units * chosen.config.tile >= topk
    assert 1 <= chosen.parts <= 128


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("kv", ["16bit", "fp8"])
def test_no_cliff_between_neighbouring_batch_sizes(arch: str, kv: str) -> None:
    """What a multiprocessor works on stays near an equal share of all the work.

    Without shares that span tokens one token more than fits would double it.
    """
    device = DEVICES[arch]
    for tokens in range(1, 1500):
        chosen = plan(arch, kv, tokens, 8, 2048, device)  # type: ignore[arg-type]
        load = Load(tokens, 8, 2048, device)
        equal = tokens * 2048 / device.processors
        few = 4 * chosen.config.tile * load.resident(chosen.config)
        assert load.time(chosen) / chosen.config.cost <= 1.4 * equal + few, tokens


def test_deterministic_plans_do_not_depend_on_the_batch() -> None:
    device = DEVICES["sm90"]
    plans = {plan("sm90", "fp8", t, 16, 2048, device, deterministic=True) for t in (1, 7, 4000)}
    assert len(plans) == 1
