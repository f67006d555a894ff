"""The demo's tiny GLM-5: the file that its command makes, and what the profile expects of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from glm5_deploy.demo.tiny_model import FOLDER
from glm5_kernel.gguf.inspect import hyperparameters_of
from glm5_kernel.gguf.shards import open_model

PROFILE = Path(__file__).parents[3] / "inventory" / "profiles" / "demo-cpu.yml"
GGUF = FOLDER / "glm5-tiny-q8_0.gguf"
SHA256 = "c703fd1ad2d960fd2b90b0ca778bca80f215da270784c8f95c790ac898f09aab"
"""Of the weights that transformers answered with when golden.json was written."""


def test_the_weights_are_the_recorded_ones() -> None:
    assert hashlib.sha256(GGUF.read_bytes()).hexdigest() == SHA256


def test_the_file_is_a_whole_glm5() -> None:
    model = open_model(str(GGUF))
    assert hyperparameters_of(model).architecture == "glm-dsa"
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["GlmMoeDsaForCausalLM"]
    assert hyperparameters_of(model).layers == config["num_hidden_layers"]


def test_the_profile_expects_what_transformers_answered() -> None:
    profile = yaml.safe_load(PROFILE.read_text())
    golden = json.loads((FOLDER / "golden.json").read_text())["prompts"]
    context = profile["serve"]["args"]["max-model-len"]
    fitting = [
        {"prompt": each["text"], "max_tokens": len(each["tokens"]), "text": each["answer"],
         "tokens": each["tokens"]}
        for each in golden
        if len(each["prompt"]) + len(each["tokens"]) <= context
    ]  # fmt: skip
    assert profile["smoke"]["expect"] == fitting
    assert len(fitting) == 2


def test_no_expected_token_is_a_close_call() -> None:
    golden = json.loads((FOLDER / "golden.json").read_text())["prompts"]
    assert min(each["margin"] for each in golden) > 0.1


def test_the_context_is_what_the_indexer_selects() -> None:
    """With more, vLLM on the CPU would refuse the model."""
    profile = yaml.safe_load(PROFILE.read_text())
    config = json.loads((FOLDER / "config.json").read_text())
    assert profile["serve"]["args"]["max-model-len"] <= config["index_topk"]


@pytest.mark.parametrize("key", ["serve", "required"])
def test_what_the_profile_names_is_there(key: str) -> None:
    named = yaml.safe_load(PROFILE.read_text())["model"][key]
    for pattern in [named] if isinstance(named, str) else named:
        assert list(FOLDER.glob(pattern)), pattern
