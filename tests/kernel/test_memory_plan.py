"""The deployer's memory plan has room for the scratch that the kernels take."""

from __future__ import annotations

import pytest
from glm5_deploy.memory.constants import KERNELS, MIB
from glm5_kernel.ops import sparse_mla, topk
from glm5_kernel.ops.configs import Device

TOKENS = 8192
"""Of a batch: vLLM's default on these GPUs."""
ATTENDED = 2048
"""Tokens up to which attention is split, and far beyond: more need no scratch."""
GPUS = {
    "RTX PRO 6000": ("sm120", Device(processors=188, shared=102_400)),
    "H200": ("sm90", Device(processors=132, shared=233_472)),
}


def scratch(gpu: str, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (sparse_mla, topk):
        monkeypatch.setattr(module, "device_table", lambda _: GPUS[gpu])
    attention = max(
        sparse_mla.workspace_bytes(ATTENDED, heads, 2048, fp8=fp8, deterministic=False)
        for heads in (64, 32, 16, 8)
        for fp8 in (True, False)
    )
    return attention + topk.workspace_bytes(TOKENS)


def test_the_kernels_scratch_is_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    most = max(scratch(gpu, monkeypatch) for gpu in GPUS)
    assert KERNELS - MIB < most <= KERNELS
