"""The deployer's memory plan has room for the scratch that the kernels take."""

from __future__ import annotations

import pytest
from glm5_deploy.memory.constants import INVARIANT_HEAD, INVARIANT_TOKENS, KERNELS, MIB
from glm5_kernel.attention.limits import DETERMINISTIC_TOKENS
from glm5_kernel.ops import sparse_mla, topk
from glm5_kernel.ops.configs import Device

TOKENS = 8192
"""Of a batch: vLLM's default on these GPUs."""
ATTENDED = 2048
"""Tokens up to which attention is split, and far beyond: more need no scratch."""
GPUS = {
    "RTX PRO 6000": ("sm120", Device(processors=188, shared=102_400)),
    "GB202, all of it": ("sm120", Device(processors=192, shared=102_400)),
    "L40S": ("sm89", Device(processors=142, shared=102_400)),
    "H200": ("sm90", Device(processors=132, shared=233_472)),
    "B300": ("sm100", Device(processors=160, shared=233_472)),
}
HEADS = (64, 32, 16, 8)


def scratch(gpu: str, heads: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (sparse_mla, topk):
        monkeypatch.setattr(module, "device_table", lambda _: GPUS[gpu])
    tokens = DETERMINISTIC_TOKENS if deterministic else ATTENDED
    attention = max(
        sparse_mla.workspace_bytes(tokens, heads, 2048, fp8=fp8, deterministic=deterministic)
        for fp8 in (True, False)
    )
    return attention + topk.workspace_bytes(TOKENS)


def test_the_kernels_scratch_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    most = max(scratch(gpu, heads, False, monkeypatch) for gpu in GPUS for heads in HEADS)
    assert KERNELS - MIB < most <= KERNELS


@pytest.mark.parametrize("heads", HEADS)
def test_so_is_that_of_results_that_do_not_depend_on_the_batch(
    heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = max(scratch(gpu, heads, True, monkeypatch) for gpu in GPUS)
    planned = KERNELS + INVARIANT_TOKENS * heads * INVARIANT_HEAD
    assert INVARIANT_TOKENS == DETERMINISTIC_TOKENS
    assert planned - 32 * MIB < most <= planned
