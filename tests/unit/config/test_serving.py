"""What is no contradiction between arguments, GPUs and smoke test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml
from glm5_deploy.config.load import adhoc
from glm5_deploy.config.serving import _KERNEL_CACHES

BACKEND = Path(__file__).parents[3] / "kernel" / "glm5_kernel" / "attention" / "backend.py"
VLLM = ["/opt/vllm/bin/vllm", "serve", "{model}"]


@pytest.mark.parametrize(
    ("command", "count", "arguments", "smoke"),
    [
        (VLLM, 8, {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}, {}),
        (VLLM, 8, {"tensor-parallel-size": 16, "nnodes": 2}, {}),
        (VLLM, 8, {"config": "/srv/vllm.yml"}, {}),
        (["/opt/llama/bin/llama-server"], 8, {"gpu-memory-utilization": 92}, {}),
        (VLLM, 0, {}, {"prompt_tokens": 9000}),
        (VLLM, 1, {"max-model-len": "auto"}, {"prompt_tokens": 9000}),
        (VLLM, 1, {"max-model-len": "10k"}, {"prompt_tokens": 9000}),
        (VLLM, 1, {"kv-cache-dtype": "fp8"}, {"kv_cache": "fp8_ds_mla"}),
        (VLLM, 1, {"attention-backend": "CUSTOM"}, {"attention_backend": "TRITON_MLA_SPARSE"}),
        (VLLM, 1, {"attention-backend": "TRITON_MLA"}, {"attention_backend": "TRITON_MLA"}),
    ],
)
def test_agrees(
    command: list[str], count: int, arguments: dict[str, object], smoke: dict[str, object],
    tmp_path: Path,
) -> None:  # fmt: skip
    profile = {
        "name": "p",
        "model": {"name": "m"},
        "engine": {"command": command},
        "gpus": {"count": count},
        "serve": {"args": arguments},
        "smoke": smoke,
    }
    path = tmp_path / "p.yml"
    path.write_text(yaml.safe_dump(profile))
    assert adhoc("root@192.0.2.1", str(path)).profile.gpus.count == count


def test_the_kernels_caches_are_its_own() -> None:
    (line,) = re.findall(r"supported_kv_cache_dtypes\b.*= (\[.*\])", BACKEND.read_text())
    assert list(_KERNEL_CACHES) == ast.literal_eval(line)
