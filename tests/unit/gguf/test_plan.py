"""What fills which parameter: every tensor has its place, and what cannot be is told at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from glm5_kernel.gguf.accounting import summary
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.placement import canonical
from glm5_kernel.gguf.plan import (
    NO_INDEXER,
    OF_TARGET,
    SHARED_WITH_TARGET,
    Plan,
    make_plan,
)
from glm5_kernel.gguf.reader import Header, TensorInfo
from glm5_kernel.gguf.shards import Located, Model

from tests.unit.gguf.support import GLM5, SMALL, V3, tensors_of

FULL = IndexerPattern("FFF", "x")


def model_of(rows: list[tuple[str, tuple[int, ...], int]]) -> Model:
    infos = [TensorInfo(*row, 0) for row in rows]
    header = Header("m.gguf", 3, {}, tuple(infos), 32, 0, None)
    return Model(("m.gguf",), (header,), {}, {info.name: Located(info, 0, 0) for info in infos})


def plan_of(
    hp: Hyperparameters = SMALL,
    pattern: IndexerPattern | None = FULL,
    quant: str = "Q8_0",
    kinds: dict[str, str] | None = None,
    **choices: Any,  # noqa: ANN401
) -> Plan:
    return make_plan(model_of(tensors_of(hp, quant, kinds)), hp, pattern, **choices)


def names(plan: Plan, module: str, leaf: str = "weight") -> list[list[str]]:
    parts = plan.parameters[module, leaf].parts
    return [[piece.name.removeprefix("blk.") for piece in part] for part in parts]


def test_fused_weights_in_order() -> None:
    plan = plan_of()
    at = "model.layers.1"
    assert names(plan, f"{at}.self_attn.fused_qkv_a_proj") == [
        ["1.attn_q_a.weight"], ["1.attn_kv_a_mqa.weight"],
    ]  # fmt: skip
    assert names(plan, f"{at}.self_attn.kv_b_proj") == [["1.attn_k_b.weight", "1.attn_v_b.weight"]]
    assert names(plan, f"{at}.self_attn.indexer.wk_weights_proj") == [
        ["1.indexer.attn_k.weight"], ["1.indexer.proj.weight"],
    ]  # fmt: skip
    assert names(plan, f"{at}.mlp.experts") == [
        ["1.ffn_gate_exps.weight"], ["1.ffn_up_exps.weight"], ["1.ffn_down_exps.weight"],
    ]  # fmt: skip
    assert names(plan, f"{at}.mlp.shared_experts.gate_up_proj") == [
        ["1.ffn_gate_shexp.weight"], ["1.ffn_up_shexp.weight"],
    ]  # fmt: skip
    assert names(plan, f"{at}.mlp.gate", "e_score_correction_bias") == [["1.exp_probs_b.bias"]]
    assert names(plan, "model.layers.0.mlp.gate_up_proj") == [
        ["0.ffn_gate.weight"], ["0.ffn_up.weight"],
    ]  # fmt: skip


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("hp", [SMALL, GLM5, replace(V3, mtp_layers=1)])
def test_every_tensor_is_loaded_or_left_out(hp: Hyperparameters, draft: bool) -> None:
    pattern = IndexerPattern("F" * hp.layers, "x") if hp.indexer else None
    rows = tensors_of(hp)
    plan = make_plan(model_of(rows), hp, pattern, draft=draft)
    loaded = [piece.name for piece in plan.pieces]
    assert len(set(loaded)) == len(loaded)
    assert set(loaded) | set(plan.left_out) == {row[0] for row in rows}
    assert not set(loaded) & set(plan.left_out)
    layers = {name.split(".")[1] for name in loaded if name.startswith("blk.")}
    wanted = range(hp.layers, hp.blocks) if draft else range(hp.layers)
    assert layers == {str(n) for n in wanted}


def test_why_tensors_are_left_out() -> None:
    plan = plan_of(pattern=IndexerPattern("FSF", "x"))
    assert plan.left_out["blk.1.indexer.proj.weight"] == "the layer reuses another's selection"
    assert plan.left_out["blk.3.attn_norm.weight"] == "MTP is off"
    draft = plan_of(draft=True)
    assert draft.left_out["token_embd.weight"] == OF_TARGET
    rows = [*tensors_of(SMALL), ("blk.3.nextn.embed_tokens.weight", (512, 512), 8)]
    own = make_plan(model_of(rows), SMALL, FULL, draft=True)
    assert own.left_out["blk.3.nextn.embed_tokens.weight"] == SHARED_WITH_TARGET
    dense = plan_of(indexer=False)
    assert dense.left_out["blk.0.indexer.attn_k.weight"] == NO_INDEXER
    assert "tensors loaded" in summary(dense)
    assert "15: attention is dense" in summary(dense)


def test_whole_kv_b_beside_its_halves() -> None:
    rows = [*tensors_of(SMALL), ("blk.0.attn_kv_b.weight", (512, 4 * 448), 8)]
    plan = make_plan(model_of(rows), SMALL, FULL)
    assert names(plan, "model.layers.0.self_attn.kv_b_proj") == [["0.attn_kv_b.weight"]]
    assert plan.left_out["blk.0.attn_k_b.weight"] == "attn_kv_b holds the same"
    assert len(names(plan, "model.layers.1.self_attn.kv_b_proj")[0]) == 2


@pytest.mark.parametrize(
    ("kinds", "quantised"),
    [
        ({}, True),
        ({"attn_q_a.weight": "Q4_K"}, True),
        ({"attn_q_a.weight": "F16"}, False),
        ({"attn_kv_a_mqa.weight": "BF16"}, False),
        ({"attn_q_a.weight": "MXFP4"}, False),
    ],
)
def test_a_float_beside_a_quantised_part(kinds: dict[str, str], quantised: bool) -> None:
    fused = plan_of(kinds=kinds).parameters["model.layers.0.self_attn.fused_qkv_a_proj", "weight"]
    assert fused.quantised is quantised
    if quantised:
        assert [kind.name for kind in fused.kinds] == [kinds.get("attn_q_a.weight", "Q8_0"), "Q8_0"]


@pytest.mark.parametrize("part", ["gate", "up", "down"])
@pytest.mark.parametrize("kind", ["F16", "MXFP4"])
def test_experts_are_held_alike(part: str, kind: str) -> None:
    plan = plan_of(kinds={f"ffn_{part}_exps.weight": kind})
    assert not plan.parameters["model.layers.1.mlp.experts", "weight"].quantised


def test_a_model_that_cannot_be_cut_so() -> None:
    with pytest.raises(GgufError) as caught:
        plan_of(quant="Q4_K", tp=2)
    assert "ffn_down_exps.weight: a row of 256 Q4_K values makes 128 a rank" in str(caught.value)
    assert caught.value.problems[-1] == (
        "tensor parallelism 2 is not possible with this file; 1 are, at most 1"
    )
    assert plan_of(quant="Q8_0", tp=4).parameters


def test_all_problems_at_once() -> None:
    rows = [row for row in tensors_of(SMALL) if row[0] != "blk.2.attn_norm.weight"]
    rows += [("blk.1.strange.weight", (4,), 0)]
    with pytest.raises(GgufError) as caught:
        make_plan(model_of(rows), replace(SMALL, heads=4), FULL, tp=3)
    text = str(caught.value)
    assert "1 tensors are missing: blk.2.attn_norm.weight" in text
    assert "blk.1.strange.weight" in text
    assert "4 heads are no multiple of 3" in text


def test_a_draft_without_its_block() -> None:
    with pytest.raises(GgufError, match="there is no MTP block"):
        plan_of(replace(SMALL, mtp_layers=0), draft=True)


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("model.layers.78.mtp_block.self_attn.q_b_proj", "model.layers.78.self_attn.q_b_proj"),
        ("model.layers.3.mlp.experts.routed_experts", "model.layers.3.mlp.experts"),
        ("model.layers.78.head", "model.layers.78.shared_head.head"),
        ("model.layers.78.shared_head.head", "model.layers.78.shared_head.head"),
        ("lm_head", "lm_head"),
    ],
)
def test_canonical_names(path: str, right: str) -> None:
    assert canonical(path) == right
