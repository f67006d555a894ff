"""What GPUs hold: measured by hand for a full GLM-5, and added up again from every rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.layout import (
    kv_bytes_per_token,
    memory_per_gpu,
    place,
    possible_tps,
    rank_bytes,
    tp_problems,
)
from glm5_kernel.gguf.reader import TensorInfo
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gguf.support import GLM5, SMALL, V3, tensors_of

FULL = IndexerPattern("F" * 78, "x")
SHARED = IndexerPattern("FFF" + "SSSF" * 18 + "SSS", "x")


def infos(
    hp: Hyperparameters, quant: str = "Q8_0", kinds: dict[str, str] | None = None
) -> list[TensorInfo]:
    return [TensorInfo(*row, 0) for row in tensors_of(hp, quant, kinds)]


def test_glm_5_in_q8_0_to_the_byte() -> None:
    """The sums written out: 78 layers, 8 GPUs, Q8_0 (34 bytes for 32 values)."""
    q8 = 34 / 32
    embedding = 2 * 6144 * 154880 * q8 / 8
    attention = 78 * q8 * (6144 * (2048 + 576) + (2048 * 16384 + 16384 * 6144) / 8)
    kv_b = 78 * 2 * 512 * 64 * 448 / 8
    keys = 78 * 2 * (6144 * 128 + 6144 * 32)
    indexer = keys + 78 * q8 * 2048 * 4096 + 78 * 4 * 256
    dense = 3 * q8 * 3 * 6144 * 12288 / 8
    experts = 75 * q8 * 256 * 3 * 6144 * 2048 / 8
    shared = 75 * q8 * 3 * 6144 * 2048 / 8
    router = 75 * (2 * 6144 * 256 + 4 * 256)
    norms = 2 * (78 * (2 * 6144 + 2048 + 512) + 6144)
    memory = memory_per_gpu(infos(GLM5), GLM5, FULL, 8)
    assert memory.by_class == {
        "embedding": embedding / 2, "output": embedding / 2, "attention": attention, "kv_b": kv_b,
        "indexer": indexer, "dense": dense, "experts": experts, "shared_experts": shared,
        "router": router, "norm": norms, "mtp": 0,
    }  # fmt: skip
    assert memory.weights == sum(memory.by_class.values()) == memory.sliced + memory.replicated
    assert memory.dequantised == kv_b + keys


def test_mtp_adds_its_block() -> None:
    without = memory_per_gpu(infos(GLM5), GLM5, FULL, 8)
    with_mtp = memory_per_gpu(infos(GLM5), GLM5, FULL, 8, mtp=True)
    assert with_mtp.by_class["mtp"] == 2 * (12288 * 6144 + 3 * 6144)
    assert with_mtp.by_class["kv_b"] * 78 == without.by_class["kv_b"] * 79
    assert with_mtp.kv.layers == 79


def test_shared_layers_hold_no_indexer() -> None:
    full = memory_per_gpu(infos(GLM5), GLM5, FULL, 8)
    shared = memory_per_gpu(infos(GLM5), GLM5, SHARED, 8)
    assert shared.by_class["indexer"] * 78 == full.by_class["indexer"] * 21
    assert full.weights - shared.weights == full.by_class["indexer"] * 57 // 78


def test_kv_per_token() -> None:
    kv = kv_bytes_per_token(GLM5, FULL)
    assert (kv.bf16, kv.fp8) == (78 * (1152 + 132), 78 * (656 + 132))
    kv = kv_bytes_per_token(GLM5, SHARED, mtp=True)
    assert (kv.layers, kv.indexer_layers) == (79, 22)
    assert (kv.bf16, kv.fp8) == (79 * 1152 + 22 * 132, 79 * 656 + 22 * 132)
    assert kv.indexer == 22 * 132
    dense = kv_bytes_per_token(V3, None)
    assert (dense.bf16, dense.fp8, dense.indexer_layers) == (61 * 1152, 61 * 576, 0)


@pytest.mark.parametrize(
    ("quant", "tps"),
    [("Q8_0", (1, 2, 4, 8, 16)), ("Q4_K", (1, 2, 4, 8)), ("IQ4_NL", (1, 2, 4, 8, 16)),
     ("F32", (1, 2, 4, 8, 16)), ("MXFP4", (1, 2, 4, 8, 16))],
)  # fmt: skip
def test_what_glm_5_can_be_cut_among(quant: str, tps: tuple[int, ...]) -> None:
    """2048-wide experts in blocks of 256 make half a block a rank at 16."""
    placed = place(infos(GLM5, quant), GLM5, FULL)
    assert possible_tps(placed, GLM5) == tps


def test_why_it_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="tensor") as caught:
        memory_per_gpu(infos(GLM5, "Q4_K"), GLM5, FULL, 16)
    reason = "a row of 2048 Q4_K values makes 128 a rank, no whole number of its blocks of 256"
    assert sorted(str(caught.value).splitlines()) == [
        f"blk.3.ffn_down_exps.weight: {reason}",
        f"blk.3.ffn_down_shexp.weight: {reason}",
        "tensor parallelism that works: 1, 2, 4, 8",
    ]
    placed = place(infos(GLM5), GLM5, FULL)
    assert tp_problems(placed, GLM5, 3)[0] == "64 heads are no multiple of 3"
    assert tp_problems(placed, GLM5, 17) == ["tensor parallelism 17: 1 to 16 are possible"]
    assert tp_problems(placed, GLM5, 0) == ["tensor parallelism 0: 1 to 16 are possible"]


@pytest.mark.parametrize("quant", ["F32", "BF16", "Q8_0", "Q4_K", "MXFP4"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_add_up(quant: str, tp: int) -> None:
    """Cut parts of all ranks make the whole; what is replicated is the same on each."""
    hp = replace(SMALL, moe_intermediate=1024, intermediate=1024)
    for each in place(infos(hp, quant), hp, IndexerPattern("FSF", "x"), mtp=True):
        whole, part = rank_bytes(each, 1), rank_bytes(each, tp)
        assert part * (1 if each.cut == "replicated" else tp) == whole
        if each.action == "kept":
            assert whole == each.info.nbytes
        elif each.action != "skipped":
            assert whole in (each.info.values * 2, each.info.values * 4)


def actions(hp: Hyperparameters, kinds: dict[str, str], quant: str = "Q8_0") -> dict[str, str]:
    pattern = IndexerPattern("FSF", "x")
    placed = place(infos(hp, quant, kinds), hp, pattern)
    return {each.weight.name: each.action for each in placed}


def test_what_becomes_of_each() -> None:
    found = actions(SMALL, {"attn_q_a.weight": "F16", "ffn_up_exps.weight": "MXFP4"})
    assert found["token_embd.weight"] == "kept"
    assert found["blk.0.attn_q_b.weight"] == "kept"
    assert found["blk.0.attn_q_a.weight"] == "float"
    assert found["blk.0.attn_kv_a_mqa.weight"] == "dequantised"
    assert found["blk.0.attn_k_b.weight"] == "reassembled"
    assert found["blk.0.indexer.attn_k.weight"] == "dequantised"
    assert found["blk.0.indexer.attn_q_b.weight"] == "kept"
    assert found["blk.1.indexer.attn_k.weight"] == "skipped"
    assert found["blk.1.ffn_up_exps.weight"] == "dequantised"
    assert found["blk.1.ffn_gate_exps.weight"] == "dequantised"
    assert found["blk.1.ffn_down_exps.weight"] == "dequantised"
    assert found["blk.3.attn_norm.weight"] == "skipped"


def test_fused_parts_of_two_types_waste_nothing() -> None:
    """Rows of q_a (Q4_K) take 288 bytes beside those of kv_a (Q8_0), which take 544."""
    mixed = memory_per_gpu(
        infos(SMALL, kinds={"attn_q_a.weight": "Q4_K"}), SMALL, IndexerPattern("FFF", "x"), 2
    )
    plain = memory_per_gpu(infos(SMALL), SMALL, IndexerPattern("FFF", "x"), 2)
    assert plain.weights - mixed.weights == 3 * 256 * (544 - 288)
    assert mixed.sliced == plain.sliced


def test_the_vocabulary_is_padded_to_64() -> None:
    hp = replace(SMALL, vocab=500)
    (table,) = (each for each in place(infos(hp), hp, None) if each.weight.kind == "embedding")
    assert rank_bytes(table, 4) == 128 * 544


@given(st.integers(1, 16), st.sampled_from(["Q8_0", "Q4_K", "Q6_K", "IQ2_XXS", "F16"]))
def test_memory_falls_with_more_gpus(tp: int, quant: str) -> None:
    tensors = infos(SMALL, quant)
    pattern = IndexerPattern("FFF", "x")
    whole = memory_per_gpu(tensors, SMALL, pattern, 1)
    try:
        part = memory_per_gpu(tensors, SMALL, pattern, tp)
    except ValueError as error:
        works = str(error).splitlines()[-1]
        assert str(tp) not in works.split(": ")[1].split(", ")
        return
    assert part.replicated == whole.replicated
    assert math.isclose(part.sliced * tp, whole.sliced)
