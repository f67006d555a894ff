"""What kind of tiny model is made: its dimensions and the forms that files come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from glm5_kernel.gguf.hyperparameters import (
    Hyperparameters,
    Indexer,
    IndexerPattern,
    hf_config,
    schedule,
)
from glm5_kernel.gguf.names import required, weight_of

Variant = Literal["glm5", "glm5.2"]
Dims = Literal["micro", "demo", "tiny", "real"]
SharedForm = Literal["omit", "repeat"]
KvForm = Literal["split", "flat", "whole"]

TINY = Hyperparameters(
    architecture="glm-dsa", layers=4, mtp_layers=0, hidden=512, vocab=512, heads=8, q_lora=256,
    kv_lora=512, nope=192, rope=64, v=256, intermediate=1024, dense_layers=1, experts=8,
    experts_used=2, shared_experts=1, moe_intermediate=512, expert_scale=2.5, expert_norm=True,
    gating="sigmoid", groups=1, groups_used=1, eps=1e-5, rope_theta=1e6, context=8192,
    indexer=Indexer(32, 128, 512),
)  # fmt: skip

# 32 index heads here too: with few, many scores are exactly 0, and which of them are selected is
# chance, in every implementation another. llama.cpp wants index heads of a multiple of 64.
MICRO = replace(
    TINY, hidden=256, heads=2, kv_lora=64, nope=32, rope=16, v=32, intermediate=256, experts=4,
    moe_intermediate=256, indexer=Indexer(32, 64, 16),
)  # fmt: skip

# What vLLM's attention takes on the CPU (latents of 512 + 64 values), as small as that may be.
DEMO = replace(
    TINY, hidden=256, heads=2, q_lora=128, nope=64, v=64, intermediate=512, experts=4,
    moe_intermediate=256, indexer=Indexer(32, 64, 512),
)  # fmt: skip

REAL = replace(
    TINY, hidden=6144, vocab=154880, heads=64, q_lora=2048, intermediate=12288, dense_layers=1,
    experts=256, experts_used=8, moe_intermediate=2048, indexer=Indexer(32, 128, 2048),
)  # fmt: skip

DIMENSIONS: Mapping[Dims, Hyperparameters] = {
    "micro": MICRO, "demo": DEMO, "tiny": TINY, "real": REAL
}  # fmt: skip
LAYERS: Mapping[Variant, int] = {"glm5": 4, "glm5.2": 7}
"""Of 5.2 seven: FFFSSSF, full, shared and full again."""


@dataclass(frozen=True)
class TinySpec:
    """A tiny model and the form that its file takes.

    Attributes:
        variant: GLM-5 (5.1 is the same), or 5.2 with shared indexer layers.
        hp: hyperparameters.
        quant: recipe of quantisation types, see `recipes`.
        seed: of all weights and prompts.
        shared: whether shared layers leave their indexer tensors out or repeat them.
        types: whether the file states `attention.indexer.types`.
        kv_b: k_b and v_b with three dimensions, with two as older files have them, or whole.
        same_experts: all experts of a layer are equal, so that large files are made fast.
    """

    variant: Variant
    hp: Hyperparameters
    quant: str = "q8_0"
    seed: int = 0
    shared: SharedForm = "omit"
    types: bool = True
    kv_b: KvForm = "split"
    same_experts: bool = False

    @property
    def pattern(self) -> IndexerPattern:
        """Which layers run their own indexer."""
        return IndexerPattern(pattern_of_variant(self.variant, self.hp.layers), "the variant")

    @property
    def name(self) -> str:
        """`glm5.2-tiny-q8_0`: of the file, without its ending."""
        return f"{self.variant}-tiny-{self.quant}"


def pattern_of_variant(variant: Variant, layers: int) -> str:
    """5.2's schedule, or every layer its own."""
    return schedule(layers, 4, 3) if variant == "glm5.2" else "F" * layers


def make_spec(
    variant: Variant = "glm5",
    dims: Dims = "tiny",
    *,
    layers: int | None = None,
    topk: int | None = None,
    mtp: bool = False,
    changes: Mapping[str, Any] | None = None,
    **form: Any,  # noqa: ANN401
) -> TinySpec:
    """A spec from the choices of the command line.

    Args:
        variant: GLM-5 or 5.2.
        dims: `tiny` is the least that vLLM's GPU kernels take, `demo` the least that vLLM takes on
            the CPU; `micro` is for tests that serve nothing; `real` has GLM-5's widths.
        layers: of the backbone, the first dense.
        topk: tokens that the indexer selects.
        mtp: whether an MTP block follows.
        changes: to other hyperparameters, by name.
        form: the other attributes of `TinySpec`.

    Raises:
        ValueError: dimensions that cannot be.
    """
    hp = DIMENSIONS[dims]
    hp = replace(
        hp,
        layers=LAYERS[variant] if layers is None else layers,
        mtp_layers=1 if mtp else 0,
        rope_theta=8e6 if variant == "glm5.2" else 1e6,
        **(changes or {}),
    )
    if topk is not None and hp.indexer is not None:
        hp = replace(hp, indexer=replace(hp.indexer, topk=topk))
    _check(hp)
    made = TinySpec(variant, hp, **form)
    _within("seed", made.seed, 0, 1 << 64)
    return made


def _check(hp: Hyperparameters) -> None:
    _within("layers", hp.layers, 2, 1000)
    _within("topk", hp.indexer.topk if hp.indexer else 0, 1, 1 << 20)
    _within("hidden", hp.hidden, 256, 1 << 16, 256)
    _within("vocab", hp.vocab, 320, 1 << 20)
    _within("experts", hp.experts, hp.experts_used, 1024)
    _within("heads", hp.heads, 1, 1024)
    _within("moe_intermediate", hp.moe_intermediate, 256, 1 << 16, 256)
    _within("context", hp.context, 1, 1 << 30)


def _within(name: str, value: int, least: int, most: int, step: int = 1) -> None:
    if not least <= value <= most or value % step:
        kind = "" if step == 1 else f"multiples of {step} "
        raise ValueError(f"{name}: got {value}; allowed: {kind}from {least} to {most}")


def check_split(spec: TinySpec, files: int) -> None:
    """Raises ValueError where the tensors cannot be spread over so many files."""
    _within("split", files, 1, len(tensor_dims(spec)) + 1)


def tensor_dims(spec: TinySpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of the file and its ggml dimensions, in the file's order."""
    hp, found = spec.hp, {}
    for name in _names(spec):
        weight = weight_of(name, hp)
        assert weight is not None, name
        old = spec.kv_b == "flat" and weight.kind == "kv_b"
        found[name] = weight.ne[1 if old else 0]
    return found


def _names(spec: TinySpec) -> list[str]:
    hp = spec.hp
    pattern = spec.pattern if spec.shared == "omit" else None
    names = list(required(hp, pattern))
    halves = ("kv_b",) if spec.kv_b == "whole" else ("k_b", "v_b")
    for layer in range(hp.blocks):
        names += [f"blk.{layer}.attn_{half}.weight" for half in halves]
        if layer >= hp.dense_layers:
            names.append(f"blk.{layer}.exp_probs_b.bias")
    return sorted(names, key=_place)


def _place(name: str) -> tuple[int, str]:
    """Embedding, blocks, norm and head: the order of published files."""
    parts = name.split(".")
    if parts[0] == "blk":
        return int(parts[1]), name
    return (-1 if parts[0] == "token_embd" else 1 << 20), name


def metadata(spec: TinySpec) -> dict[str, Any]:
    """What llama.cpp's converter writes for such a model, without the tokenizer."""
    hp = spec.hp
    assert hp.indexer is not None
    values: dict[str, Any] = {
        "block_count": hp.blocks,
        "context_length": hp.context,
        "embedding_length": hp.hidden,
        "feed_forward_length": hp.intermediate,
        "vocab_size": hp.vocab,
        "leading_dense_block_count": hp.dense_layers,
        "attention.head_count": hp.heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": hp.eps,
        "attention.q_lora_rank": hp.q_lora,
        "attention.kv_lora_rank": hp.kv_lora,
        "attention.key_length": hp.kv_lora + hp.rope,
        "attention.value_length": hp.kv_lora,
        "attention.key_length_mla": hp.head,
        "attention.value_length_mla": hp.v,
        "attention.indexer.head_count": hp.indexer.heads,
        "attention.indexer.key_length": hp.indexer.head_dim,
        "attention.indexer.top_k": hp.indexer.topk,
        "rope.dimension_count": hp.rope,
        "rope.freq_base": hp.rope_theta,
        "expert_count": hp.experts,
        "expert_used_count": hp.experts_used,
        "expert_shared_count": hp.shared_experts,
        "expert_feed_forward_length": hp.moe_intermediate,
        "expert_weights_scale": hp.expert_scale,
        "expert_weights_norm": hp.expert_norm,
        "expert_gating_func": 2,
        "expert_group_count": hp.groups,
        "expert_group_used_count": hp.groups_used,
    }
    if hp.mtp_layers:
        values["nextn_predict_layers"] = hp.mtp_layers
    if spec.variant == "glm5.2" and spec.types:
        values["attention.indexer.types"] = [kind == "F" for kind in spec.pattern.pattern]
    return {f"{hp.architecture}.{key}": value for key, value in values.items()}


LEFT_OUT = (
    "topk_method",
    "indexer_rope_interleave",
    "rope_parameters",
    "rope_theta",
    "index_topk_pattern",
    "indexer_types",
    "scoring_func",
)
"""What an adapter must fill in from the file."""


def config(spec: TinySpec, *, bare: bool = False) -> dict[str, Any]:
    """config.json; `bare` leaves out what can be known from the file alone."""
    made = hf_config(spec.hp, spec.pattern)
    # Published configs spell the types out; vLLM's own key is the adapter's to write.
    made.pop("index_topk_pattern", None)
    made |= {"torch_dtype": "bfloat16", "use_cache": True, "attention_bias": False}
    if bare:
        made = {key: value for key, value in made.items() if key not in LEFT_OUT}
    return made
