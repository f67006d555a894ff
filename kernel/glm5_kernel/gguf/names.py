"""Which tensor of a file is which weight of the model: names, classes and right dimensions.

The GGUF names are llama.cpp's, the others those of a Hugging Face checkpoint, which vLLM's
`load_weights` takes (deepseek_v2.py and deepseek_mtp.py, 0.26). Where vLLM fuses several into one
parameter it does so itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from glm5_kernel.gguf.errors import listed, some_of
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.reader import TensorInfo

TensorClass = Literal[
    "embedding", "attention", "kv_b", "indexer", "dense", "router", "experts", "shared_experts",
    "norm", "mtp", "output", "unused",
]  # fmt: skip

EXPERT = "{expert}"
"""Stands for an expert's number in `Weight.hf`."""


@dataclass(frozen=True)
class Weight:
    """What a tensor of a file is.

    Attributes:
        name: in the file.
        role: its name without the block: `attn_q_a.weight`, `nextn.enorm.weight`, …
        layer: block, None outside of them. Blocks from `Hyperparameters.layers` on are MTP's.
        kind: class of tensor; whatever only MTP has is `mtp`.
        hf: name in a checkpoint; with `{expert}` in it, one for each expert. `kv_b_proj` for k_b,
            v_b and kv_b alike. Empty where vLLM has no use for it.
        ne: right ggml dimensions, fastest first; more than one where older files differ.
    """

    name: str
    role: str
    layer: int | None
    kind: TensorClass
    hf: str
    ne: tuple[tuple[int, ...], ...]

    def hf_names(self, experts: int) -> tuple[str, ...]:
        """All names in a checkpoint."""
        if EXPERT not in self.hf:
            return (self.hf,) if self.hf else ()
        return tuple(self.hf.replace(EXPERT, str(expert)) for expert in range(experts))


Dims = tuple[tuple[int, ...], ...]
Entry = tuple[str, TensorClass, str, Dims]

BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
"""To be matched as a whole: `blk.03` is no other name of `blk.3`."""


def weight_of(name: str, hp: Hyperparameters) -> Weight | None:
    """What the tensor `name` is in a model of these hyperparameters, None if nothing known."""
    match = BLOCK.fullmatch(name)
    if match is None:
        entry = _outer(hp).get(name)
        return None if entry is None else Weight(name, name, None, *entry)
    layer, role = int(match[1]), match[2]
    entry = _roles(hp, layer).get(role) if layer < hp.blocks else None
    if entry is None:
        return None
    kind, suffix, ne = entry
    hf = f"model.layers.{layer}.{suffix}" if suffix else ""
    return Weight(name, role, layer, kind, hf, ne)


Row = tuple[TensorClass, str, Dims]


def _outer(hp: Hyperparameters) -> dict[str, Row]:
    table: Dims = ((hp.hidden, hp.vocab),)
    return {
        "token_embd.weight": ("embedding", "model.embed_tokens.weight", table),
        "output_norm.weight": ("norm", "model.norm.weight", ((hp.hidden,),)),
        "output.weight": ("output", "lm_head.weight", table),
        "rope_freqs.weight": ("unused", "", ((hp.rope // 2,),)),
    }


def _roles(hp: Hyperparameters, layer: int) -> dict[str, Row]:
    rows = _attention(hp) | _indexer(hp)
    rows |= _dense(hp) if layer < hp.dense_layers else _experts(hp)
    return rows | _mtp(hp) if layer >= hp.layers else rows


def _attention(hp: Hyperparameters) -> dict[str, Row]:
    h, lora = hp.hidden, hp.kv_lora
    at = "self_attn."
    rows: dict[str, Row] = {
        "attn_norm.weight": ("norm", "input_layernorm.weight", ((h,),)),
        "ffn_norm.weight": ("norm", "post_attention_layernorm.weight", ((h,),)),
        "attn_kv_a_mqa.weight": (
            "attention", f"{at}kv_a_proj_with_mqa.weight", ((h, lora + hp.rope),),
        ),
        "attn_kv_a_norm.weight": ("norm", f"{at}kv_a_layernorm.weight", ((lora,),)),
        "attn_output.weight": ("attention", f"{at}o_proj.weight", ((hp.heads * hp.v, h),)),
    }  # fmt: skip
    return rows | _query(hp) | _kv_b(hp)


def _query(hp: Hyperparameters) -> dict[str, Row]:
    at, out = "self_attn.", hp.heads * hp.head
    if hp.q_lora is None:
        return {"attn_q.weight": ("attention", f"{at}q_proj.weight", ((hp.hidden, out),))}
    return {
        "attn_q_a.weight": ("attention", f"{at}q_a_proj.weight", ((hp.hidden, hp.q_lora),)),
        "attn_q_a_norm.weight": ("norm", f"{at}q_a_layernorm.weight", ((hp.q_lora,),)),
        "attn_q_b.weight": ("attention", f"{at}q_b_proj.weight", ((hp.q_lora, out),)),
    }


def _kv_b(hp: Hyperparameters) -> dict[str, Row]:
    """k_b is transposed; older files have it and v_b with two dimensions, or both whole."""
    hf, lora, heads = "self_attn.kv_b_proj.weight", hp.kv_lora, hp.heads
    k: Dims = ((hp.nope, lora, heads), (hp.nope, lora * heads))
    v: Dims = ((lora, hp.v, heads), (lora, hp.v * heads))
    return {
        "attn_k_b.weight": ("kv_b", hf, k),
        "attn_v_b.weight": ("kv_b", hf, v),
        "attn_kv_b.weight": ("kv_b", hf, ((lora, heads * (hp.nope + hp.v)),)),
    }


INDEXER_ROLES = (
    "indexer.attn_k.weight",
    "indexer.attn_q_b.weight",
    "indexer.proj.weight",
    "indexer.k_norm.weight",
    "indexer.k_norm.bias",
)


def _indexer(hp: Hyperparameters) -> dict[str, Row]:
    if hp.indexer is None:
        return {}
    at, heads, dim = "self_attn.indexer.", hp.indexer.heads, hp.indexer.head_dim
    query = hp.q_lora if hp.q_lora is not None else hp.hidden
    return {
        "indexer.attn_k.weight": ("indexer", f"{at}wk.weight", ((hp.hidden, dim),)),
        "indexer.attn_q_b.weight": ("indexer", f"{at}wq_b.weight", ((query, heads * dim),)),
        "indexer.proj.weight": ("indexer", f"{at}weights_proj.weight", ((hp.hidden, heads),)),
        "indexer.k_norm.weight": ("indexer", f"{at}k_norm.weight", ((dim,),)),
        "indexer.k_norm.bias": ("indexer", f"{at}k_norm.bias", ((dim,),)),
    }


def _mlp(prefix: str, end: str, kind: TensorClass, hidden: int, width: int) -> dict[str, Row]:
    return {
        f"ffn_gate{end}.weight": (kind, f"{prefix}gate_proj.weight", ((hidden, width),)),
        f"ffn_up{end}.weight": (kind, f"{prefix}up_proj.weight", ((hidden, width),)),
        f"ffn_down{end}.weight": (kind, f"{prefix}down_proj.weight", ((width, hidden),)),
    }


def _dense(hp: Hyperparameters) -> dict[str, Row]:
    return _mlp("mlp.", "", "dense", hp.hidden, hp.intermediate)


def _experts(hp: Hyperparameters) -> dict[str, Row]:
    h, width, count = hp.hidden, hp.moe_intermediate, hp.experts
    at, bias = f"mlp.experts.{EXPERT}.", "mlp.gate.e_score_correction_bias"
    rows: dict[str, Row] = {
        "ffn_gate_inp.weight": ("router", "mlp.gate.weight", ((h, count),)),
        "exp_probs_b.bias": ("router", bias, ((count,),)),
        "exp_probs_b": ("router", bias, ((count,),)),
        "ffn_gate_exps.weight": ("experts", f"{at}gate_proj.weight", ((h, width, count),)),
        "ffn_up_exps.weight": ("experts", f"{at}up_proj.weight", ((h, width, count),)),
        "ffn_down_exps.weight": ("experts", f"{at}down_proj.weight", ((width, h, count),)),
    }
    if not hp.shared_experts:
        return rows
    shared = width * hp.shared_experts
    return rows | _mlp("mlp.shared_experts.", "_shexp", "shared_experts", h, shared)


def _mtp(hp: Hyperparameters) -> dict[str, Row]:
    h, table = hp.hidden, ((hp.hidden, hp.vocab),)
    return {
        "nextn.eh_proj.weight": ("mtp", "eh_proj.weight", ((2 * h, h),)),
        "nextn.enorm.weight": ("mtp", "enorm.weight", ((h,),)),
        "nextn.hnorm.weight": ("mtp", "hnorm.weight", ((h,),)),
        "nextn.shared_head_norm.weight": ("mtp", "shared_head.norm.weight", ((h,),)),
        "nextn.shared_head_head.weight": ("mtp", "shared_head.head.weight", table),
        "nextn.embed_tokens.weight": ("mtp", "embed_tokens.weight", table),
    }


OPTIONAL = frozenset(
    {
        "rope_freqs.weight",
        "nextn.shared_head_head.weight",
        "nextn.embed_tokens.weight",
    }
)
"""What vLLM does without: MTP's own head and embedding are the model's where a file has none."""


def indexer_layers(names: Iterable[str]) -> frozenset[int]:
    """The blocks that have indexer tensors."""
    found = (BLOCK.fullmatch(name) for name in names)
    return frozenset(int(each[1]) for each in found if each and each[2] in INDEXER_ROLES)


def required(hp: Hyperparameters, pattern: IndexerPattern | None) -> Iterator[str]:
    """Every tensor that a file must hold, save k_b, v_b and their whole form.

    Shared layers may hold indexer tensors or leave them out: vLLM has no weights there.
    """
    yield from (name for name in _outer(hp) if name not in OPTIONAL)
    for layer in range(hp.blocks):
        own = layer >= hp.layers or pattern is None or pattern.pattern[layer] == "F"
        for role, (kind, _, _) in _roles(hp, layer).items():
            skipped = kind == "kv_b" or role in OPTIONAL or role.startswith("exp_probs_b")
            if not skipped and (own or kind != "indexer"):
                yield f"blk.{layer}.{role}"


def tensor_problems(
    tensors: Mapping[str, TensorInfo],
    hp: Hyperparameters,
    pattern: IndexerPattern | None = None,
    *,
    mtp: bool = True,
) -> list[str]:
    """Tensors that are missing, of wrong dimensions or unknown, one sentence each.

    Args:
        tensors: by name, of all shards.
        hp: the model's.
        pattern: which layers must have an indexer; all of them if None.
        mtp: whether the MTP block is needed too.
    """
    return [
        *some_of(_same_weight(tensors, hp)),
        *some_of(_undecodable(tensors, hp, mtp)),
        *some_of(_wrong_dimensions(tensors, hp)),
        *_missing(tensors, hp, pattern, mtp),
        *_unknown(tensors, hp),
    ]


def _same_weight(tensors: Mapping[str, TensorInfo], hp: Hyperparameters) -> Iterator[str]:
    """The router's bias has two names; k_b and v_b may stand beside the whole kv_b."""
    for layer in range(hp.blocks):
        names = [f"blk.{layer}.exp_probs_b{end}" for end in (".bias", "")]
        if all(name in tensors for name in names):
            yield f"tensors {' and '.join(names)} are the same weight; one of them is right"


def _undecodable(
    tensors: Mapping[str, TensorInfo], hp: Hyperparameters, mtp: bool
) -> Iterator[str]:
    for name, info in tensors.items():
        if not info.kind.is_decodable and (mtp or not _of_mtp(name, hp)):
            yield (
                f"tensor {name} is of type {info.kind.name}, which is known, but which nothing "
                "decodes; quantise the model to another type"
            )


def _wrong_dimensions(tensors: Mapping[str, TensorInfo], hp: Hyperparameters) -> Iterator[str]:
    for name, info in tensors.items():
        weight = weight_of(name, hp)
        if weight is None or _trimmed(info.ne) in [_trimmed(ne) for ne in weight.ne]:
            continue
        right = " or ".join(str(list(ne)) for ne in weight.ne)
        yield (
            f"tensor {name} has dimensions {list(info.ne)}; {right} is right by the file's metadata"
        )


def _trimmed(ne: tuple[int, ...]) -> tuple[int, ...]:
    """Without the ones at the end, which ggml does not tell apart from none."""
    end = len(ne)
    while end > 1 and ne[end - 1] == 1:
        end -= 1
    return ne[:end]


def _missing(
    tensors: Mapping[str, TensorInfo],
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    mtp: bool,
) -> Iterator[str]:
    needed = list(required(hp, pattern))
    for layer in range(hp.blocks):
        needed += _kv_b_missing(tensors, layer)
        if layer >= hp.dense_layers and hp.gating == "sigmoid":
            names = [f"blk.{layer}.exp_probs_b{end}" for end in (".bias", "")]
            needed += [] if any(name in tensors for name in names) else names[:1]
    absent = [name for name in needed if name not in tensors and (mtp or not _of_mtp(name, hp))]
    if absent:
        yield f"{len(absent)} tensors are missing: {listed(absent)}"


def _kv_b_missing(tensors: Mapping[str, TensorInfo], layer: int) -> list[str]:
    if f"blk.{layer}.attn_kv_b.weight" in tensors:
        return []
    return [f"blk.{layer}.attn_{half}_b.weight" for half in "kv"]


def _of_mtp(name: str, hp: Hyperparameters) -> bool:
    match = BLOCK.fullmatch(name)
    return match is not None and int(match[1]) >= hp.layers


def _unknown(tensors: Mapping[str, TensorInfo], hp: Hyperparameters) -> Iterator[str]:
    unknown = [name for name in tensors if weight_of(name, hp) is None]
    if unknown:
        yield (
            f"{len(unknown)} tensors have no place in a {hp.architecture} of {hp.layers} layers "
            f"and {hp.mtp_layers} MTP blocks: {listed(unknown)}"
        )
