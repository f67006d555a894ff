"""vLLM 0.26's own layers and loaders on a CPU: made, filled and read back, never run.

A platform that is neither CUDA nor a CPU stands in, so that nothing asks for a GPU or for compiled
code; the attention backend is one that only holds its arguments. Tensor parallelism is played: each
rank's model is made and filled with the group saying so.
"""

from __future__ import annotations

import os

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "0"}
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import vllm.platforms

from tests.vllm.gguf.platform import NoPlatform

vllm.platforms._current_platform = NoPlatform()

from glm5_kernel.plugin import register  # noqa: E402

REGISTRATION = register()

import vllm_gguf_plugin  # noqa: E402

vllm_gguf_plugin.register()
