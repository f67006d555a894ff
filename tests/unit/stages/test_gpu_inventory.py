"""The inventory that GPU machines walk with (tests/gpu/host) keeps what is to be proved."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest
import yaml
from glm5_deploy.config.load import load_inventory, resolve
from glm5_deploy.stages.arguments import engine_words

from tests.gpu.host.inventory import inventory, pairs


@pytest.mark.parametrize("gpus", [1, 2])
def test_it_resolves_to_the_profile_with_a_vllm_of_the_host(gpus: int, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    prompts = [{"name": "short", "prompt": [1], "tokens": [2]}]
    golden.write_text(json.dumps({"format": 1, "prompts": prompts}))
    document = inventory(
        "/opt/models/tiny", "tiny-00001-of-00003.gguf", golden, "/opt/torch/bin/python3",
        site=["/opt/site"], gpus=gpus, environment={"CUDA_HOME": "/usr/local/cuda"},
        ssh=pairs(["address=127.0.0.1", "port=2222", "user=root"]),
    )  # fmt: skip
    path = tmp_path / "inventory.yml"
    path.write_text(yaml.safe_dump(document))
    (target,) = resolve(load_inventory(path))
    profile = target.profile
    assert target.settings.connection.port == 2222
    assert profile.engine.lock is None
    assert profile.engine.base is not None
    assert profile.engine.kernel
    assert (profile.gpus.count, profile.smoke.kv_cache, profile.smoke.indexer) == (
        gpus, "fp8_ds_mla", "triton"
    )  # fmt: skip
    assert (profile.smoke.golden, profile.smoke.needle) == (golden, None)
    assert {"CUDA_HOME", "GLM5_INDEXER"} <= set(profile.environment)
    words = engine_words(target, PurePosixPath("/venv"), PurePosixPath("/usr/bin/python3"))
    assert words[2] == "/opt/models/tiny/tiny-00001-of-00003.gguf"
    assert words[words.index("--attention-backend") + 1] == "CUSTOM"
    assert words[words.index("--tensor-parallel-size") + 1] == str(gpus)
    assert "--tool-call-parser" not in words
