"""What a file says of its model, and where config.json says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.hyperparameters import (
    Hyperparameters,
    IndexerPattern,
    Yarn,
    complete_config,
    contradictions,
    hf_config,
    indexer_pattern,
    read_hyperparameters,
    schedule,
)
from glm5_kernel.gguf.reader import read_bytes

from tests.unit.gguf.support import GLM5, SMALL, V3, header_bytes, metadata_of

GLM52 = replace(GLM5, rope_theta=8e6, context=1 << 20)
PATTERN52 = "FFF" + "SSSF" * 18 + "SSS"

GLM5_CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "first_k_dense_replace": 3, "index_topk": 2048, "index_n_heads": 32,
    "index_head_dim": 128, "indexer_rope_interleave": True, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 202752, "vocab_size": 154880, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "hidden_act": "silu",
    "num_nextn_predict_layers": 1, "moe_layer_freq": 1,
}  # fmt: skip


def read(hp: Hyperparameters, **more: Any) -> Hyperparameters:  # noqa: ANN401
    metadata = metadata_of(hp, **{key.replace("__", "."): value for key, value in more.items()})
    return read_hyperparameters(read_bytes(header_bytes(metadata, [])).metadata)


@pytest.mark.parametrize("hp", [GLM5, GLM52, SMALL, V3, replace(GLM5, indexer_types=PATTERN52)])
def test_what_was_written_is_read(hp: Hyperparameters) -> None:
    assert read(hp) == hp


def test_older_deepseek_files_have_whole_heads() -> None:
    """192 = 128 + 64 and 128 stood in key_length and value_length before MLA was split."""
    metadata = metadata_of(V3)
    for key in ("key_length_mla", "value_length_mla"):
        del metadata[f"deepseek2.attention.{key}"]
    metadata["deepseek2.attention.key_length"] = 192
    metadata["deepseek2.attention.value_length"] = 128
    assert read_hyperparameters(metadata) == V3


def test_yarn() -> None:
    prefix = "deepseek2__rope__scaling"
    hp = read(V3, **{f"{prefix}__type": "yarn", f"{prefix}__factor": 40.0,
                     f"{prefix}__original_context_length": 4096,
                     f"{prefix}__yarn_log_multiplier": 0.1})  # fmt: skip
    assert hp.yarn == Yarn(40.0, 4096, 0.1)
    config = hf_config(hp)
    assert config["rope_parameters"]["factor"] == 40.0
    assert config["rope_parameters"]["mscale_all_dim"] == 1.0
    stated = {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                               "original_max_position_embeddings": 4096}}  # fmt: skip
    assert contradictions(stated, hp) == []
    stated["rope_scaling"]["factor"] = 20
    assert contradictions(stated, hp) == ["rope factor is 20 in config.json, 40.0 in the file"]


def test_the_vocabulary_is_found() -> None:
    metadata = metadata_of(SMALL)
    del metadata["glm-dsa.vocab_size"]
    assert read_hyperparameters(metadata, vocab=700).vocab == 700
    tokens = header_bytes(metadata | {"tokenizer.ggml.tokens": ["a", "b"]}, [])
    assert read_hyperparameters(read_bytes(tokens).metadata).vocab == 2


def test_all_that_is_missing_is_named_at_once() -> None:
    metadata = metadata_of(SMALL)
    del metadata["glm-dsa.attention.kv_lora_rank"]
    del metadata["glm-dsa.attention.indexer.top_k"]
    metadata["glm-dsa.expert_count"] = "many"
    with pytest.raises(GgufError) as caught:
        read_hyperparameters(metadata)
    assert caught.value.problems == (
        "metadata glm-dsa.attention.kv_lora_rank is missing; a whole number is needed",
        "metadata glm-dsa.expert_count is 'many'; a whole number is needed",
        "metadata glm-dsa.attention.indexer.top_k is missing; a whole number is needed",
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 1, "block_count leaves no layer beside 1 MTP blocks"),
        ("block_count", 1 << 30, "at most 4096"),
        ("rope.dimension_count", 256, "must exceed its 256 RoPE dimensions"),
        ("leading_dense_block_count", 9, "leading_dense_block_count is 9 of 3 layers"),
        ("expert_used_count", 9, "expert_used_count is 9 of 8 experts"),
        ("expert_gating_func", 3, "expert_gating_func is 3; 1 (softmax) or 2 (sigmoid)"),
        ("expert_weights_norm", 1, "expert_weights_norm is 1; true or false"),
    ],
)
def test_what_cannot_be_right(key: str, value: int, message: str) -> None:
    with pytest.raises(GgufError) as caught:
        read_hyperparameters(metadata_of(SMALL) | {f"glm-dsa.{key}": value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("types", "pattern"),
    [
        ([True, False, True], "FSF"),
        ([1, 0, 1], "FSF"),
        (["full", "shared", "full"], "FSF"),
        ([True, False, True, True], "FSF"),  # the MTP block's too
    ],
)
def test_indexer_types_in_every_spelling(types: list[Any], pattern: str) -> None:
    assert read(SMALL, **{"glm-dsa__attention__indexer__types": types}).indexer_types == pattern


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([True], "is an array of 1 bool; one for each of 3 layers"),
        ([2, 0, 1], "2; each is 'full' (true) or 'shared' (false)"),
        ([False, True, True], "layer 0 is shared, but there is none before it"),
    ],
)
def test_indexer_types_that_cannot_be(types: list[Any], message: str) -> None:
    with pytest.raises(GgufError) as caught:
        read(SMALL, **{"glm-dsa__attention__indexer__types": types})
    assert message in str(caught.value)


def test_frequency_and_offset() -> None:
    prefix = "glm-dsa__attention__indexer"
    hp = read(
        GLM5, **{f"{prefix}__top_k_frequency": 4, f"{prefix}__skip_top_k_offset": 3}
    )  # fmt: skip
    assert hp.indexer_types == PATTERN52


def test_the_schedule_of_glm_5_2() -> None:
    """21 full layers: 0, 1, 2, 6, 10, …, 74."""
    pattern = schedule(78, 4, 3)
    assert pattern == PATTERN52
    assert pattern.count("F") == 21


ALL = frozenset(range(78))
FULL52 = frozenset(n for n in ALL if PATTERN52[n] == "F")


@pytest.mark.parametrize(
    ("hp", "present", "config", "pattern", "origin"),
    [
        (replace(GLM52, indexer_types=PATTERN52), ALL, {}, PATTERN52, "attention.indexer.types"),
        (GLM52, ALL, {"index_topk_pattern": PATTERN52}, PATTERN52, "config.json"),
        (
            GLM5,
            ALL,
            {"indexer_types": ["full" if c == "F" else "shared" for c in PATTERN52]},
            PATTERN52,
            "config.json",
        ),
        (GLM5, ALL, {"index_topk_freq": 4, "index_skip_topk_offset": 3}, PATTERN52, "config.json"),
        (GLM5, FULL52 | {78}, {}, PATTERN52, "the layers that have indexer tensors"),
        (GLM52, ALL | {78}, {}, PATTERN52, "GLM-5.2"),
        (GLM5, ALL | {78}, {}, "F" * 78, "nothing"),
    ],
)
def test_shared_layers_are_found(
    hp: Hyperparameters, present: frozenset[int], config: dict[str, Any], pattern: str, origin: str
) -> None:
    found = indexer_pattern(hp, present, config)
    assert found is not None
    assert found.pattern == pattern
    assert origin in found.origin


def test_a_full_layer_without_tensors() -> None:
    with pytest.raises(GgufError, match=r"layers 3, 4, 5, 7, .* more run their own indexer"):
        indexer_pattern(replace(GLM5, indexer_types="F" * 78), FULL52)


def test_a_dense_model_has_no_pattern() -> None:
    assert indexer_pattern(V3) is None


def test_the_real_config_agrees() -> None:
    assert contradictions(GLM5_CONFIG, GLM5) == []


def test_a_complete_config_stays() -> None:
    assert complete_config(GLM5_CONFIG, GLM5, IndexerPattern("F" * 78, "x")) == GLM5_CONFIG | {
        "rope_theta": 1000000
    }


def test_what_a_config_leaves_out_is_filled_in() -> None:
    left_out = ("topk_method", "indexer_rope_interleave", "rope_parameters", "scoring_func")
    bare = {key: value for key, value in GLM5_CONFIG.items() if key not in left_out}
    pattern = IndexerPattern(PATTERN52, "x")
    completed = complete_config(bare, GLM52, pattern)
    assert completed["topk_method"] == "noaux_tc"
    assert completed["indexer_rope_interleave"] is True
    assert completed["rope_parameters"] == {"rope_theta": 8e6, "rope_type": "default"}
    assert completed["rope_theta"] == 8e6
    assert completed["scoring_func"] == "sigmoid"
    assert completed["index_topk_pattern"] == PATTERN52
    assert completed["indexer_types"][:4] == ["full"] * 3 + ["shared"]


@pytest.mark.parametrize("key", [key for key in GLM5_CONFIG if isinstance(GLM5_CONFIG[key], int)])
def test_every_key_is_compared(key: str) -> None:
    """Each number that a config may state; the few that may differ are known."""
    config = GLM5_CONFIG | {key: GLM5_CONFIG[key] + 1}  # type: ignore[operator]
    told = contradictions(config, GLM5)
    loose = {"num_key_value_heads", "max_position_embeddings", "num_nextn_predict_layers"}
    assert (told == []) == (key in loose)
    if told:
        assert told[0].startswith(f"{key} is ")


def test_what_older_files_leave_out_is_no_contradiction() -> None:
    """DeepSeek-V3 files of early 2025 do not state the groups of experts."""
    metadata = metadata_of(V3)
    for name in ("expert_group_count", "expert_group_used_count"):
        del metadata[f"deepseek2.{name}"]
    old = read_hyperparameters(metadata)
    assert old.assumed == ("n_group", "topk_group")
    assert contradictions({"n_group": 8, "topk_group": 4}, old) == []
    assert contradictions({"n_group": 7}, read_hyperparameters(metadata_of(V3))) == [
        "n_group is 7 in config.json, 8 in the file"
    ]


def test_all_contradictions_are_told() -> None:
    config = GLM5_CONFIG | {
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "scoring_func": "softmax",
        "indexer_rope_interleave": False,
        "indexer_types": ["full"] * 78,
    }
    told = contradictions(config, replace(GLM5, indexer_types=PATTERN52))
    assert told[:3] == [
        "scoring_func is 'softmax' in config.json, 'sigmoid' in the file",
        "rope_theta is 10000.0 in config.json, 1000000.0 in the file",
        "indexer_rope_interleave is False in config.json, True in the file",
    ]
    assert told[3].startswith("layers 3, 4, 5, 7, 8, 9, 11, 12 and 49 more differ in whether")
    assert len(told) == 4


def test_a_config_whose_pattern_is_none() -> None:
    config = GLM5_CONFIG | {"indexer_types": ["full"]}
    assert contradictions(config, GLM5) == [
        "config.json: indexer_types has 1 entries; one for each of 78 layers is right"
    ]
