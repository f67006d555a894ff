"""A config completed from the file: what config.json states stays, what it leaves out is set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glm5_kernel.gguf.folders import only_model
from glm5_kernel.gguf.hf_config import complete, stated_config
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern, Yarn, hf_config

from tests.unit.gguf.support import GLM5, V3

FULL = IndexerPattern("F" * 78, "x")
SHARED = IndexerPattern("FFF" + "SSSF" * 18 + "SSS", "x")


class Config:
    """What is used of a transformers config."""

    def __init__(self, **values: Any) -> None:  # noqa: ANN401
        self.__dict__ |= values

    def update(self, values: dict[str, Any]) -> None:
        self.__dict__ |= values


DEFAULTS: dict[str, Any] = {
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "topk_method": None,
    "index_topk": 2048, "hidden_size": 6144, "model_type": "glm_moe_dsa",
}  # fmt: skip


def completed(
    stated: dict[str, Any],
    hp: Hyperparameters = GLM5,
    pattern: IndexerPattern | None = FULL,
    **before: Any,  # noqa: ANN401
) -> Config:
    config = Config(**(DEFAULTS | before))
    complete(config, stated, hp, pattern)
    return config


def test_what_vllm_needs_and_transformers_has_no_default_for() -> None:
    config = completed({"hidden_size": 6144})
    assert config.topk_method == "noaux_tc"  # type: ignore[attr-defined]
    assert config.indexer_rope_interleave is True  # type: ignore[attr-defined]
    assert config.rope_parameters == {  # type: ignore[attr-defined]
        "rope_theta": 1e6, "rope_type": "default",
    }  # fmt: skip
    assert not hasattr(config, "index_topk_pattern")


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    ],
)
def test_a_stated_theta_stays(stated: dict[str, Any]) -> None:
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    config = completed(stated, rope_parameters=dict(rope))
    assert config.rope_parameters == rope  # type: ignore[attr-defined]


def test_shared_layers_are_written_where_vllm_reads_them() -> None:
    """config.json of GLM-5.2 spells them out; vLLM reads the pattern alone."""
    stated = {"indexer_types": ["full" if kind == "F" else "shared" for kind in SHARED.pattern]}
    config = completed(stated, pattern=SHARED)
    assert config.index_topk_pattern == SHARED.pattern  # type: ignore[attr-defined]


def test_a_draft_keeps_its_class() -> None:
    config = completed({}, pattern=SHARED, model_type="deepseek_mtp", architectures=["Draft"])
    assert config.model_type == "deepseek_mtp"  # type: ignore[attr-defined]
    assert config.architectures == ["Draft"]  # type: ignore[attr-defined]
    assert config.index_topk_pattern == SHARED.pattern  # type: ignore[attr-defined]


def test_yarn_comes_from_the_file() -> None:
    hp = replace(V3, yarn=Yarn(40.0, 4096, 0.1))
    config = completed({}, hp, None, model_type="deepseek_v3")
    rope = config.rope_parameters  # type: ignore[attr-defined]
    assert (rope["rope_type"], rope["factor"], rope["mscale_all_dim"]) == ("yarn", 40.0, 1.0)
    assert rope["original_max_position_embeddings"] == 4096


def test_nothing_changes_twice() -> None:
    config = Config(**DEFAULTS)
    assert complete(config, {}, GLM5, SHARED)
    assert complete(config, {}, GLM5, SHARED) == ()


def test_what_is_stated(tmp_path: Path) -> None:
    assert stated_config(tmp_path) == {}
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 1, "index_topk": 5}))
    assert stated_config(tmp_path, {"index_topk": 7}) == {"hidden_size": 1, "index_topk": 7}
    assert stated_config(tmp_path, lambda config: config)["index_topk"] == 5
    file = tmp_path / "m.gguf"
    file.touch()
    assert stated_config(file)["hidden_size"] == 1


def test_all_keys_of_the_file_are_stated_or_set() -> None:
    config = completed({}, pattern=SHARED)
    for key, value in hf_config(GLM5, SHARED).items():
        if key not in ("model_type", "architectures", "num_key_value_heads", "rope_theta"):
            assert getattr(config, key) == value, key


@pytest.mark.parametrize(
    ("names", "right"),
    [
        (["a.gguf"], "a.gguf"),
        (["a-00002-of-00002.gguf", "a-00001-of-00002.gguf"], "a-00001-of-00002.gguf"),
        (["a.gguf", "mmproj-a.gguf"], "a.gguf"),
        (["a-Q4_K.gguf", "a-Q8_0.gguf"], None),
        (["a-00001-of-00002.gguf", "a-00001-of-00003.gguf"], None),
        ([], None),
    ],
)
def test_the_only_model_of_a_folder(tmp_path: Path, names: list[str], right: str | None) -> None:
    for name in names:
        (tmp_path / name).touch()
    found = only_model(tmp_path)
    assert (found.name if found else None) == right
    assert only_model(tmp_path / "none") is None
