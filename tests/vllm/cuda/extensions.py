"""What vLLM that is built for CUDA needs so that it imports without."""

from __future__ import annotations

import os
import sys
from types import ModuleType

NAMES = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)


def stub() -> None:
    """Empty modules for its extensions; to be called before vLLM is imported.

    It keeps Triton where CUDA_VISIBLE_DEVICES is empty.
    """
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    for name in NAMES:
        sys.modules[name] = ModuleType(name)
