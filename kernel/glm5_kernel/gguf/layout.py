"""What becomes of each tensor on a GPU under tensor parallelism, and the memory that it takes.

The adapter does what stands here, so that the plan of memory and the loading agree. How vLLM cuts
weights is from vLLM 0.26: `deepseek_v2.py` (`fused_qkv_a_proj` and the indexer are whole on every
rank, `q_b_proj`, `kv_b_proj`, gate and up are cut by rows, `o_proj` and down by columns, embedding
and head by vocabulary padded to 64), `sparse_attn_indexer.py` and `attention/mla_attention.py`
(absorbed weights are views of `kv_b_proj`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.names import TensorClass, Weight, weight_of
from glm5_kernel.gguf.reader import TensorInfo
from glm5_kernel.gguf.types import QuantType, row_bytes

Action = Literal["kept", "float", "dequantised", "reassembled", "skipped"]
"""kept: quantised as in the file. float: as vLLM holds such a weight, in the model's dtype or F32.
dequantised: to the model's dtype. reassembled: k_b and v_b dequantised into kv_b_proj.
skipped: not loaded."""

Cut = Literal["replicated", "rows", "columns", "heads", "vocabulary"]
"""How ranks share it: rows of the output, columns of the input (within ggml's fastest dimension,
hence within blocks), rows of whole heads, rows of the vocabulary."""

MODEL_DTYPE_BYTES = 2
VOCAB_PADDING = 64
MAX_TP = 16

_CUTS: dict[str, Cut] = {
    "attn_q.weight": "heads",
    "attn_q_b.weight": "heads",
    "attn_k_b.weight": "heads",
    "attn_v_b.weight": "heads",
    "attn_kv_b.weight": "heads",
    "attn_output.weight": "columns",
    "ffn_gate.weight": "rows",
    "ffn_up.weight": "rows",
    "ffn_down.weight": "columns",
    "ffn_gate_shexp.weight": "rows",
    "ffn_up_shexp.weight": "rows",
    "ffn_down_shexp.weight": "columns",
    "ffn_gate_exps.weight": "rows",
    "ffn_up_exps.weight": "rows",
    "ffn_down_exps.weight": "columns",
    "token_embd.weight": "vocabulary",
    "output.weight": "vocabulary",
    "nextn.embed_tokens.weight": "vocabulary",
    "nextn.shared_head_head.weight": "vocabulary",
}

_UNQUANTISED = frozenset(
    {
        # vLLM gives these quant_config=None (wk_weights_proj, the router) or nn.Linear (eh_proj).
        "indexer.attn_k.weight",
        "indexer.proj.weight",
        "ffn_gate_inp.weight",
        "nextn.eh_proj.weight",
    }
)

_FLOAT32 = frozenset(
    {"indexer.k_norm.weight", "indexer.k_norm.bias", "exp_probs_b.bias", "exp_probs_b"}
)

_FUSED: tuple[frozenset[str], ...] = (
    frozenset({"attn_q_a.weight", "attn_kv_a_mqa.weight"}),
    frozenset({"ffn_gate.weight", "ffn_up.weight"}),
    frozenset({"ffn_gate_shexp.weight", "ffn_up_shexp.weight"}),
    frozenset({"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"}),
)
"""Computed together by vLLM: where one part is a float, the others are dequantised too."""


@dataclass(frozen=True)
class Placed:
    """A tensor on a GPU.

    Attributes:
        weight: what it is.
        info: its entry in the file.
        action: what becomes of it.
        cut: how ranks share it.
        note: why, where that is no matter of course.
    """

    weight: Weight
    info: TensorInfo
    action: Action
    cut: Cut
    note: str = ""


def place(
    tensors: Iterable[TensorInfo],
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    *,
    mtp: bool = False,
) -> tuple[Placed, ...]:
    """What becomes of every tensor, in the file's order; those that vLLM has no name for are
    skipped.

    Args:
        tensors: of all shards.
        hp: the model's.
        pattern: which layers run their own indexer; None without one.
        mtp: whether speculative decoding by the MTP block is on.
    """
    known = [(weight_of(info.name, hp), info) for info in tensors]
    floats, whole = _float_parts(known), _whole_kv_b(known)
    return tuple(
        _placed(weight, info, hp, pattern, mtp, floats)
        if weight.layer not in whole or weight.role not in _HALVES
        else Placed(weight, info, "skipped", "heads", "attn_kv_b holds the same")
        for weight, info in known
        if weight
    )


_HALVES = ("attn_k_b.weight", "attn_v_b.weight")


def _whole_kv_b(known: Iterable[tuple[Weight | None, TensorInfo]]) -> frozenset[int]:
    """Layers that hold kv_b whole; DeepSeek-V3 files of early 2025 hold k_b and v_b beside it."""
    return frozenset(
        weight.layer
        for weight, _ in known
        if weight and weight.layer is not None and weight.role == "attn_kv_b.weight"
    )


def _float_parts(known: Iterable[tuple[Weight | None, TensorInfo]]) -> frozenset[tuple[int, int]]:
    """Fused projections, by layer and number, of which a part is a float or has no kernel."""
    return frozenset(
        (weight.layer, _fused(weight.role))
        for weight, info in known
        if weight and weight.layer is not None and _fused(weight.role) >= 0
        and (info.kind.is_float or info.kind.kernel == "none")
    )  # fmt: skip


def _fused(role: str) -> int:
    return next((index for index, roles in enumerate(_FUSED) if role in roles), -1)


def _placed(
    weight: Weight,
    info: TensorInfo,
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    mtp: bool,
    floats: frozenset[tuple[int, int]],
) -> Placed:
    cut = _CUTS.get(weight.role, "replicated")
    skipped = _skipped(weight, hp, pattern, mtp)
    if skipped:
        return Placed(weight, info, "skipped", cut, skipped)
    if weight.kind == "kv_b":
        return Placed(weight, info, "reassembled", cut, "k_b and v_b into kv_b_proj")
    if info.kind.is_float:
        return Placed(weight, info, "float", cut)
    if weight.role in _UNQUANTISED or len(weight.ne[0]) == 1:
        return Placed(weight, info, "dequantised", cut, "vLLM holds it unquantised")
    if info.kind.kernel == "none":
        return Placed(weight, info, "dequantised", cut, f"no kernel reads {info.kind.name}")
    if weight.layer is not None and (weight.layer, _fused(weight.role)) in floats:
        return Placed(weight, info, "dequantised", cut, "fused with a part that is a float")
    return Placed(weight, info, "kept", cut)


def _skipped(weight: Weight, hp: Hyperparameters, pattern: IndexerPattern | None, mtp: bool) -> str:
    if not weight.hf:
        return "vLLM makes it itself"
    if weight.layer is None:
        return ""
    if weight.layer >= hp.layers:
        return "" if mtp else "MTP is off"
    shared = pattern is not None and pattern.pattern[weight.layer] == "S"
    if weight.kind == "indexer" and shared:
        return "the layer reuses another's selection"
    return ""


def rank_bytes(placed: Placed, tp: int, dtype_bytes: int = MODEL_DTYPE_BYTES) -> int:
    """Bytes of a tensor on each of `tp` GPUs; `tp` divides it (`tp_problems`)."""
    if placed.action == "skipped":
        return 0
    columns, rows = _rank_dims(placed, tp)
    if placed.action == "kept":
        return rows * row_bytes(placed.info.kind, columns)
    return rows * columns * (4 if placed.weight.role in _FLOAT32 else dtype_bytes)


def _rank_dims(placed: Placed, tp: int) -> tuple[int, int]:
    """Values in a row and rows, of a rank's part."""
    columns, rows = placed.info.ne[0], math.prod(placed.info.ne[1:])
    if placed.cut == "columns":
        return columns // tp, rows
    if placed.cut == "vocabulary":
        return columns, -(-_padded_vocab(rows) // tp)
    return columns, rows if placed.cut == "replicated" else rows // tp


def _padded_vocab(rows: int) -> int:
    return -(-rows // VOCAB_PADDING) * VOCAB_PADDING


def tp_problems(placed: Iterable[Placed], hp: Hyperparameters, tp: int) -> list[str]:
    """Why the model cannot be cut among `tp` GPUs, one sentence for each reason; empty if it can.

    A quantised tensor can be cut only between blocks.
    """
    if not 1 <= tp <= MAX_TP:
        return [f"tensor parallelism {tp}: 1 to {MAX_TP} are possible"]
    problems: dict[str, str] = {}
    if hp.heads % tp:
        problems["heads"] = f"{hp.heads} heads are no multiple of {tp}"
    for each in placed:
        if each.action == "skipped" or each.cut in ("replicated", "heads"):
            continue
        problem = _cut_problem(each, tp)
        if problem is not None:
            problems.setdefault(f"{each.weight.role} {each.info.kind.name}", problem)
    return list(problems.values())


def _cut_problem(placed: Placed, tp: int) -> str | None:
    kind = placed.info.kind if placed.action == "kept" else None
    return cut_problem(placed.weight.name, placed.cut, placed.info.ne, tp, kind)


def cut_problem(
    name: str, cut: Cut, ne: tuple[int, ...], tp: int, kind: QuantType | None
) -> str | None:
    """Why a tensor cannot be cut among `tp` ranks; None if it can.

    Args:
        name: for the message.
        cut: how it would be cut.
        ne: its ggml dimensions.
        tp: ranks.
        kind: its type where it stays quantised, else None.
    """
    # A file may have fewer dimensions than is right, which is told elsewhere.
    rows = ne[1] if len(ne) > 1 else 1
    if cut == "vocabulary":
        padded = _padded_vocab(rows)
        return f"{name}: {padded} rows are no multiple of {tp}" if padded % tp else None
    if cut == "rows":
        return f"{name}: {rows} rows are no multiple of {tp}" if rows % tp else None
    if cut != "columns":
        return None
    if ne[0] % tp:
        return f"{name}: a row of {ne[0]} values is no multiple of {tp}"
    block = 1 if kind is None else kind.block
    part = ne[0] // tp
    if part % block:
        return (
            f"{name}: a row of {ne[0]} {'' if kind is None else kind.name} values makes {part} a "
            f"rank, no whole number of its blocks of {block}"
        )
    return None


def possible_tps(placed: Iterable[Placed], hp: Hyperparameters) -> tuple[int, ...]:
    """The numbers of GPUs from 1 to 16 that the model can be cut among."""
    held = tuple(placed)
    return tuple(tp for tp in range(1, MAX_TP + 1) if not tp_problems(held, hp, tp))


@dataclass(frozen=True)
class KvCache:
    """Bytes that a token's KV cache takes on each GPU; MLA's is whole on every rank.

    Attributes:
        bf16: with a cache in the model's dtype, indexer included.
        fp8: with `--kv-cache-dtype fp8_ds_mla` (plain fp8 without an indexer), indexer included.
        indexer: of either, what the indexer's keys take.
        layers: with attention, MTP's included where it is on.
        indexer_layers: with an indexer of their own.
    """

    bf16: int
    fp8: int
    indexer: int
    layers: int
    indexer_layers: int


@dataclass(frozen=True)
class MemoryPerGpu:
    """What a model's weights take on each GPU.

    Attributes:
        tp: GPUs that share it.
        weights: bytes; the sum of `sliced` and `replicated`.
        sliced: of weights of which a rank holds its part.
        replicated: of weights that every rank holds whole.
        dequantised: of either, what is held in the model's dtype though the file has it quantised.
        by_class: bytes of each class of tensor.
        kv: bytes per token of context.
    """

    tp: int
    weights: int
    sliced: int
    replicated: int
    dequantised: int
    by_class: Mapping[TensorClass, int]
    kv: KvCache


def memory_per_gpu(
    tensors: Iterable[TensorInfo],
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    tp: int,
    *,
    mtp: bool = False,
    dtype_bytes: int = MODEL_DTYPE_BYTES,
) -> MemoryPerGpu:
    """The memory that a model's weights take on each of `tp` GPUs, to the byte, from its header.

    Workspace, CUDA graphs and what the allocator wastes are not in it.

    Args:
        tensors: of all shards.
        hp: the model's.
        pattern: which layers run their own indexer; None without one.
        tp: GPUs, 1 to 16.
        mtp: whether speculative decoding by the MTP block is on.
        dtype_bytes: of the model's dtype: bf16 and fp16 take 2.

    Raises:
        ValueError: the model cannot be cut so; with every reason and the numbers that work.
    """
    placed = place(tensors, hp, pattern, mtp=mtp)
    problems = tp_problems(placed, hp, tp)
    if problems:
        works = ", ".join(map(str, possible_tps(placed, hp)))
        raise ValueError("\n".join([*problems, f"tensor parallelism that works: {works}"]))
    sliced = replicated = dequantised = 0
    by_class: dict[TensorClass, int] = defaultdict(int)
    for each in placed:
        size = rank_bytes(each, tp, dtype_bytes)
        by_class[each.weight.kind] += size
        sliced, replicated = (
            (sliced, replicated + size) if each.cut == "replicated" else (sliced + size, replicated)
        )
        if each.action in ("dequantised", "reassembled") and not each.info.kind.is_float:
            dequantised += size
    kv = kv_bytes_per_token(hp, pattern, mtp=mtp, dtype_bytes=dtype_bytes)
    total = sliced + replicated
    return MemoryPerGpu(tp, total, sliced, replicated, dequantised, dict(by_class), kv)


MLA_FP8_BYTES = 656
"""vLLM's `fp8_ds_mla`: 512 values of e4m3, four scales in fp32, 64 values of bf16."""


def kv_bytes_per_token(
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    *,
    mtp: bool = False,
    dtype_bytes: int = MODEL_DTYPE_BYTES,
) -> KvCache:
    """Bytes of KV cache per token of context, on each GPU.

    A layer holds kv_lora + rope values (or 656 bytes of fp8_ds_mla), and one with its own indexer a
    key of fp8 with a scale of 4 bytes per 128 values (vLLM 0.26 `DeepseekV32IndexerCache`).
    """
    extra = hp.mtp_layers if mtp else 0
    layers = hp.layers + extra
    own = 0 if hp.indexer is None else (pattern.full if pattern else hp.layers) + extra
    dim = 0 if hp.indexer is None else hp.indexer.head_dim
    indexer = own * (dim + dim // 128 * 4)
    latent = hp.kv_lora + hp.rope
    fp8 = layers * (latent if hp.indexer is None else MLA_FP8_BYTES)
    return KvCache(layers * latent * dtype_bytes + indexer, fp8 + indexer, indexer, layers, own)
