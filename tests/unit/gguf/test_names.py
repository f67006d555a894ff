"""Every tensor of a file has its place, and wrong ones are told with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.names import indexer_layers, tensor_problems, weight_of
from glm5_kernel.gguf.reader import TensorInfo

from tests.unit.gguf.support import GLM5, SMALL, V3, tensors_of

ROWS = [
    ("token_embd.weight", "model.embed_tokens.weight", "embedding", (6144, 154880)),
    ("output_norm.weight", "model.norm.weight", "norm", (6144,)),
    ("output.weight", "lm_head.weight", "output", (6144, 154880)),
    ("blk.0.attn_q_a.weight", "self_attn.q_a_proj.weight", "attention", (6144, 2048)),
    ("blk.0.attn_q_b.weight", "self_attn.q_b_proj.weight", "attention", (2048, 16384)),
    ("blk.0.attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", "attention", (6144, 576)),
    ("blk.0.attn_k_b.weight", "self_attn.kv_b_proj.weight", "kv_b", (192, 512, 64)),
    ("blk.0.attn_v_b.weight", "self_attn.kv_b_proj.weight", "kv_b", (512, 256, 64)),
    ("blk.0.attn_kv_b.weight", "self_attn.kv_b_proj.weight", "kv_b", (512, 28672)),
    ("blk.0.attn_output.weight", "self_attn.o_proj.weight", "attention", (16384, 6144)),
    ("blk.0.indexer.attn_k.weight", "self_attn.indexer.wk.weight", "indexer", (6144, 128)),
    ("blk.0.indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight", "indexer", (2048, 4096)),
    ("blk.0.indexer.proj.weight", "self_attn.indexer.weights_proj.weight", "indexer", (6144, 32)),
    ("blk.0.indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", "indexer", (128,)),
    ("blk.2.ffn_gate.weight", "mlp.gate_proj.weight", "dense", (6144, 12288)),
    ("blk.2.ffn_down.weight", "mlp.down_proj.weight", "dense", (12288, 6144)),
    ("blk.3.ffn_gate_inp.weight", "mlp.gate.weight", "router", (6144, 256)),
    ("blk.3.exp_probs_b.bias", "mlp.gate.e_score_correction_bias", "router", (256,)),
    ("blk.3.ffn_gate_exps.weight", "mlp.experts.{expert}.gate_proj.weight", "experts",
     (6144, 2048, 256)),
    ("blk.3.ffn_down_exps.weight", "mlp.experts.{expert}.down_proj.weight", "experts",
     (2048, 6144, 256)),
    ("blk.3.ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", "shared_experts",
     (6144, 2048)),
    ("blk.78.nextn.eh_proj.weight", "eh_proj.weight", "mtp", (12288, 6144)),
    ("blk.78.nextn.shared_head_norm.weight", "shared_head.norm.weight", "mtp", (6144,)),
    ("blk.78.ffn_up_exps.weight", "mlp.experts.{expert}.up_proj.weight", "experts",
     (6144, 2048, 256)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hf", "kind", "ne"), ROWS)
def test_names_and_dimensions_of_glm_5(name: str, hf: str, kind: str, ne: tuple[int, ...]) -> None:
    """The dimensions are those measured in published files."""
    weight = weight_of(name, GLM5)
    assert weight is not None
    prefix = f"model.layers.{weight.layer}." if weight.layer is not None else ""
    assert weight.hf == prefix + hf
    assert weight.kind == kind
    assert ne in weight.ne


def test_a_full_file_has_1809_tensors() -> None:
    """As published GLM-5.2 files have that repeat the indexer on every layer."""
    assert len(tensors_of(GLM5)) == 1809


def test_names_of_experts() -> None:
    weight = weight_of("blk.3.ffn_up_exps.weight", SMALL)
    assert weight is not None
    names = weight.hf_names(8)
    assert len(names) == 8
    assert names[7] == "model.layers.3.mlp.experts.7.up_proj.weight"


@pytest.mark.parametrize(
    "name",
    [
        "blk.79.attn_norm.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.3.ffn_gate.weight",
        "blk.77.nextn.eh_proj.weight",
        "blk.0.attn_q.weight",
        "v.patch_embd.weight",
        "blk.x.attn_norm.weight",
        "blk.9999999999.attn_norm.weight",
    ],
)
def test_what_has_no_place(name: str) -> None:
    assert weight_of(name, GLM5) is None


def test_deepseek_has_no_indexer_and_may_have_whole_queries() -> None:
    assert weight_of("blk.0.indexer.proj.weight", V3) is None
    weight = weight_of("blk.0.attn_q.weight", replace(V3, q_lora=None))
    assert weight is not None
    assert weight.hf == "model.layers.0.self_attn.q_proj.weight"


def infos(hp: Hyperparameters) -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, ne, number, 0) for name, ne, number in tensors_of(hp)}


@pytest.mark.parametrize("hp", [GLM5, SMALL, V3], ids=["glm-5", "small", "deepseek-v3"])
def test_a_right_file_has_no_problem(hp: Hyperparameters) -> None:
    pattern = IndexerPattern("F" * hp.layers, "x") if hp.indexer else None
    assert tensor_problems(infos(hp), hp, pattern) == []


def test_older_forms_are_right() -> None:
    tensors = infos(SMALL)
    flat = tensors["blk.0.attn_k_b.weight"]
    tensors[flat.name] = replace(flat, ne=(192, 2048))
    value = tensors["blk.0.attn_v_b.weight"]
    tensors[value.name] = replace(value, ne=(512, 1024))
    for half in "kv":
        del tensors[f"blk.1.attn_{half}_b.weight"]
    tensors["blk.1.attn_kv_b.weight"] = TensorInfo("blk.1.attn_kv_b.weight", (512, 1792), 8, 0)
    bias = tensors.pop("blk.2.exp_probs_b.bias")
    tensors["blk.2.exp_probs_b"] = replace(bias, name="blk.2.exp_probs_b")
    norm = tensors["output_norm.weight"]
    tensors[norm.name] = replace(norm, ne=(512, 1))
    assert tensor_problems(tensors, SMALL, IndexerPattern("FFF", "x")) == []


def test_shared_layers_may_leave_their_indexer_out() -> None:
    tensors = {
        name: info for name, info in infos(SMALL).items() if not name.startswith("blk.1.indexer")
    }
    assert indexer_layers(tensors) == {0, 2, 3}
    assert tensor_problems(tensors, SMALL, IndexerPattern("FSF", "x")) == []
    (problem,) = tensor_problems(tensors, SMALL, IndexerPattern("FFF", "x"))
    assert problem.startswith("5 tensors are missing: blk.1.indexer.attn_k.weight")


def test_an_mtp_block_is_not_needed_where_mtp_is_off() -> None:
    tensors = {name: info for name, info in infos(SMALL).items() if not name.startswith("blk.3.")}
    assert tensor_problems(tensors, SMALL, mtp=False) == []
    (problem,) = tensor_problems(tensors, SMALL)
    assert "blk.3.nextn.eh_proj.weight" in problem or "tensors are missing" in problem


def test_all_problems_are_told() -> None:
    tensors = infos(SMALL)
    wrong = tensors["blk.1.attn_v_b.weight"]
    tensors[wrong.name] = replace(wrong, ne=(256, 512, 4))
    del tensors["blk.1.attn_k_b.weight"]
    del tensors["blk.2.exp_probs_b.bias"]
    tensors["blk.1.ffn_gate.weight"] = TensorInfo("blk.1.ffn_gate.weight", (512, 512), 0, 0)
    assert tensor_problems(tensors, SMALL) == [
        "tensor blk.1.attn_v_b.weight has dimensions [256, 512, 4]; [512, 256, 4] or [512, 1024] "
        "is right by the file's metadata",
        "2 tensors are missing: blk.1.attn_k_b.weight, blk.2.exp_probs_b.bias",
        "1 tensors have no place in a glm-dsa of 3 layers and 1 MTP blocks: blk.1.ffn_gate.weight",
    ]
