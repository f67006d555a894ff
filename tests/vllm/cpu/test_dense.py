"""GLM-5 made dense for the CPU: where that is the same function, and refused elsewhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from glm5_kernel.compat import names
from glm5_kernel.gguf.cpu.dense import is_dense, is_sparse
from glm5_kernel.gguf.prepare import prepare

from tests.vllm.cpu.engine import ARGUMENTS
from tests.vllm.gguf.files import make_files

KERNEL = Path(__file__).parents[3] / "kernel"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose config.json does not say how many tokens the indexer selects: 64."""
    folder = tmp_path_factory.mktemp("model")
    _, paths = make_files(folder, dims="demo", layers=2, topk=64, bare=True)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"index_topk": 64', '"unknown": 64'))
    return paths[0]


def config_for(gguf: Path, **more: Any) -> Any:  # noqa: ANN401
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(gguf), **{**ARGUMENTS, **more}).create_engine_config()


def test_vllm_has_what_is_needed() -> None:
    assert names.missing(names.CPU) == []
    assert names.missing(names.GGUF) == []


@pytest.mark.parametrize("length", [8, 64])
def test_within_the_selection_it_is_dense(gguf: Path, length: int) -> None:
    config = config_for(gguf, max_model_len=length)
    model = config.model_config
    assert is_dense(model.hf_config)
    assert not is_sparse(model.hf_config)
    assert model.hf_text_config is model.hf_config
    assert config.attention_config.backend.name == "CPU_MLA"
    assert config.cache_config.block_size == 16


@pytest.mark.parametrize("length", [65, None])
def test_beyond_it_is_refused_with_what_would_be_right(gguf: Path, length: int | None) -> None:
    """None: as long as the model allows, 8192."""
    right = f"max_model_len is {length or 8192}.*set --max-model-len to 64 or less"
    with pytest.raises(ValueError, match=right):
        config_for(gguf, max_model_len=length)


LOAD = """
import pickle, sys
config = pickle.load(sys.stdin.buffer)
model = config.model_config.hf_config
print(type(model).__name__, hasattr(model, "index_topk"), model.hidden_size)
print(type(config.quant_config).__name__, "triton" in sys.modules)
"""


def test_another_process_gets_the_same(gguf: Path) -> None:
    """The engine and its workers are sent the config before they call a plugin."""
    sent = pickle.dumps(config_for(gguf, max_model_len=64))
    done = subprocess.run(
        [sys.executable, "-c", LOAD], input=sent, capture_output=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": str(KERNEL)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    said = done.stdout.decode().splitlines()[-2:]
    assert said == ["DenseConfig False 256", "CpuGGUFConfig False"]


def test_the_indexers_tensors_are_accounted_for(gguf: Path) -> None:
    model = config_for(gguf, max_model_len=64).model_config
    plan = prepare(str(gguf), model, tp=1)
    assert {name.split(".")[2] for name in plan.left_out} == {"indexer"}
    assert len(plan.left_out) == 2 * 5
    assert set(plan.left_out.values()) == {"attention is dense"}
    assert not hasattr(model.hf_config, "index_topk")


def test_rope_is_not_vllms_kernel_for_the_cpu(gguf: Path) -> None:
    """Which in 0.32.0 turns other values than torch where heads [T, H, D] are interleaved; this
    fails, and the exception may go, once that is mended."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    config = config_for(gguf, max_model_len=64)
    assert "-rotary_embedding" in config.compilation_config.custom_ops
    parameters = {"rope_type": "default", "rope_theta": 1e6}
    with set_current_vllm_config(VllmConfig()):
        rope = get_rope(64, 128, is_neox_style=False, rope_parameters=parameters)
    q, k = torch.randn(5, 2, 64), torch.randn(5, 1, 64)
    right, _ = rope.forward_native(torch.arange(5), q.clone(), k.clone())
    kernel, _ = rope.forward_cpu(torch.arange(5), q.clone(), k.clone())
    assert not torch.allclose(right, kernel, atol=1e-2)
