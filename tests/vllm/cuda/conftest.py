"""A vLLM that is built for CUDA, without CUDA: extensions stubbed, GPU faked, Triton interpreted.

vLLM's own Triton kernels are interpreted too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernel import conftest as _interpreter  # noqa: F401
from tests.vllm.cuda import extensions

extensions.stub()

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
