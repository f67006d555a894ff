"""The profiles that ship for GLM-5: complete with what they ask for, alike, and open to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.config.load import load_inventory, resolve
from glm5_deploy.config.locks import lock_path
from glm5_deploy.config.models import Target
from glm5_deploy.config.resources import resource_dir
from glm5_deploy.stages.cuda import OLDEST_DRIVER, lock_cuda, numbers

GGUF = ("glm-5", "glm-5.1", "glm-5.2")
ALL = (*GGUF, "glm-5-fp8-safetensors")
NAMES = {"name", "description", "model"}


def target(profile: str, folder: Path, **host: Any) -> Target:  # noqa: ANN401
    """What one host with this profile resolves to."""
    given = {"profile": profile, **host}
    if profile in GGUF:
        given["vars"] = {"gguf": "m-00001-of-00009.gguf", **host.get("vars", {})}
    path = folder / "inventory.yml"
    path.write_text(yaml.safe_dump({"profiles": [], "hosts": {"bw1": given}}))
    (found,) = resolve(load_inventory(path))
    return found


@pytest.mark.parametrize("name", ALL)
def test_what_smoke_expects_follows_from_what_is_asked_for(name: str, tmp_path: Path) -> None:
    profile = target(name, tmp_path).profile
    assert profile.engine.kernel
    assert profile.smoke.kv_cache == profile.serve.args["kv-cache-dtype"]
    assert profile.smoke.indexer == profile.environment["GLM5_INDEXER"]
    assert profile.serve.args["attention-backend"] == "CUSTOM"
    assert profile.smoke.attention_backend == "TRITON_MLA_SPARSE"
    longest = profile.serve.args["max-model-len"]
    assert isinstance(longest, int)
    assert profile.smoke.needle is not None
    assert 2048 < (profile.smoke.prompt_tokens or 0) < longest
    assert 2048 < profile.smoke.needle.tokens < longest


@pytest.mark.parametrize("name", ALL)
def test_the_lock_is_there_and_the_driver_runs_it(name: str, tmp_path: Path) -> None:
    profile = target(name, tmp_path).profile
    cuda = lock_cuda(lock_path(profile.engine.lock or "").read_bytes())
    assert cuda == (13, 0)
    assert numbers(profile.gpus.min_driver or "") >= numbers(OLDEST_DRIVER[cuda[0]])


@pytest.mark.parametrize("name", ALL)
def test_every_choice_can_be_changed(name: str, tmp_path: Path) -> None:
    override = {
        "serve": {
            "port": 9000,
            "args": {"dtype": None, "max-num-seqs": 64, "kv-cache-dtype": "auto"},
        },
        "environment": {"VLLM_USE_DEEP_GEMM": "1"},
        "smoke": {"needle": None, "kv_cache": "bf16"},
    }
    values = {"gpus": 4, "max_model_len": 65536, "model_path": "/srv/glm"}
    found = target(name, tmp_path, override=override, vars=values)
    profile = found.profile
    assert str(found.model_folder) == "/srv/glm"
    assert (profile.gpus.count, profile.serve.args["tensor-parallel-size"]) == (4, 4)
    assert profile.serve.args["max-model-len"] == 65536
    assert (profile.serve.args["max-num-seqs"], profile.serve.args["dtype"]) == (64, None)
    assert (profile.smoke.needle, profile.smoke.kv_cache) == (None, "bf16")


def test_the_gguf_profiles_differ_in_names_alone(tmp_path: Path) -> None:
    first, *others = (
        target(name, tmp_path).profile.model_dump(mode="json", exclude=NAMES) for name in GGUF
    )
    assert others == [first, first]
    for name in GGUF:
        profile = target(name, tmp_path).profile
        assert profile.name == profile.model.name == profile.served_model_name == name


SAID_BEFORE = {"max-num-batched-tokens", "tool-call-parser", "reasoning-parser"}
"""Arguments whose reason stands above the line before them."""


@pytest.mark.parametrize("name", ALL)
def test_every_argument_is_explained(name: str) -> None:
    lines = (resource_dir("profiles") / f"{name}.yml").read_text().splitlines()
    start = lines.index("  args:")
    end = next(i for i, line in enumerate(lines) if line.startswith("environment:"))
    for before, line in zip(lines[start:end], lines[start + 1 : end], strict=False):
        key = line.strip().partition(":")[0]
        if key and not key.startswith("#") and key not in SAID_BEFORE:
            assert before.strip().startswith("#"), line
