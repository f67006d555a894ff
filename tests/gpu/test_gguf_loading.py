"""Files loaded into vLLM's model on a CUDA device, through page-locked buffers, and read back."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm_gguf_plugin")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

QUANTS = ["q8_0", "q4_0", "bf16", "f32"]
if importlib.util.find_spec("libgguf") is not None:
    QUANTS += ["q4_k", "ud", "mixed"]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    import vllm_gguf_plugin
    from glm5_kernel.plugin import register
    from vllm.v1.worker.workspace import init_workspace_manager

    register()
    vllm_gguf_plugin.register()
    init_workspace_manager(torch.device("cuda"))


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize(("tp", "chunk"), [(1, 32 << 20), (2, 100_000)])
def test_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: str, tp: int, chunk: int
) -> None:
    """Small chunks make buffers be used again while copies from them may still run."""
    from glm5_kernel.gguf import loader

    from tests.vllm.gguf.files import expected, make_files, same
    from tests.vllm.gguf.ranks import load_ranks, parts_of, put_together

    fill = loader.fill_all
    monkeypatch.setattr(loader, "fill_all", lambda *args: fill(*args, chunk=chunk))
    spec, paths = make_files(tmp_path, dims="tiny", quant=quant, split=2, variant="glm5.2")
    ranks = [parts_of(model, spec.hp, tp) for model in load_ranks(paths[0], tp)]
    assert same(put_together(ranks), expected(spec, paths)) == []
