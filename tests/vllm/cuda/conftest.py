"""A vLLM that is built for CUDA, without CUDA: extensions stubbed, GPU faked, Triton interpreted.

vLLM's own Triton kernels are interpreted too: it keeps Triton where CUDA_VISIBLE_DEVICES is empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.kernel import conftest as _interpreter  # noqa: F401

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
for _name in (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
):
    sys.modules[_name] = ModuleType(_name)

import vllm  # noqa: E402
import vllm.platforms  # noqa: E402
from glm5_kernel.plugin import register  # noqa: E402
from vllm.v1.worker import workspace  # noqa: E402

from tests.vllm.cuda.gpu import FakeGpu  # noqa: E402

vllm.platforms._current_platform = FakeGpu()
REGISTRATION = register()
RELEASE = vllm.__version__

# As in a worker: the model's module imports it, and the plugin's layer takes its place.
import vllm.model_executor.layers.sparse_attn_indexer  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capability 9.0 before every test; what asks CUDA itself is answered."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    monkeypatch.setattr("vllm.utils.torch_utils.PIN_MEMORY", False)
    FakeGpu.choose(9, 0)


@pytest.fixture
def pool() -> Iterator[workspace.WorkspaceManager]:
    """vLLM's scratch memory that all layers share."""
    workspace.init_workspace_manager(torch.device("cpu"))
    yield workspace.current_workspace_manager()
    workspace.reset_workspace_manager()
