"""A model's hyperparameters from GGUF metadata, and the HF config that they make.

Keys are llama.cpp's for `glm-dsa` and `deepseek2` (gguf-py 0.19 `constants.py`); what vLLM reads is
from vLLM 0.26 `deepseek_v2.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glm5_kernel.gguf.errors import GgufError, listed
from glm5_kernel.gguf.reader import Array, Value

MAX_BLOCKS = 4096
"""Layers and MTP blocks that a file may claim; GLM-5 has 79."""

GATING = {1: "softmax", 2: "sigmoid"}
MODEL_TYPES = {"glm-dsa": "glm_moe_dsa", "deepseek2": "deepseek_v3"}
MODEL_CLASSES = {"glm-dsa": "GlmMoeDsaForCausalLM", "deepseek2": "DeepseekV3ForCausalLM"}


ASSUMED: Mapping[str, tuple[str, ...]] = {
    "expert_gating_func": ("scoring_func", "topk_method"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "rope.freq_base": ("rope_theta",),
}
"""Metadata that older files leave out, and what config.json calls it."""


@dataclass(frozen=True)
class Indexer:
    """The DSA indexer: heads, dimensions of each, tokens that it selects."""

    heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True)
class Yarn:
    """RoPE scaled by YaRN (DeepSeek-V3)."""

    factor: float
    original_context: int
    log_multiplier: float = 0.0


@dataclass(frozen=True)
class Hyperparameters:
    """What a file says of its model.

    Attributes:
        architecture: `glm-dsa` or `deepseek2`.
        layers: of the backbone, without the MTP blocks that follow them in the file.
        mtp_layers: those.
        q_lora: rank of the query's projection, None where it is whole.
        nope, rope, v: dimensions of a head: without and with position, of its value.
        dense_layers: leading layers without experts.
        gating: `sigmoid` or `softmax`.
        groups, groups_used: of experts.
        indexer: None where attention is dense.
        indexer_types: "F" or "S" for each backbone layer, where the file says so: whether it runs
            its own indexer or reuses the selection of the layer before it.
        assumed: keys of the HF config that the file does not state; the values here are then
            llama.cpp's defaults, and config.json may say otherwise.
    """

    architecture: str
    layers: int
    mtp_layers: int
    hidden: int
    vocab: int
    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v: int
    intermediate: int
    dense_layers: int
    experts: int
    experts_used: int
    shared_experts: int
    moe_intermediate: int
    expert_scale: float
    expert_norm: bool
    gating: str
    groups: int
    groups_used: int
    eps: float
    rope_theta: float
    context: int
    indexer: Indexer | None = None
    indexer_types: str | None = None
    yarn: Yarn | None = None
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def blocks(self) -> int:
        """Blocks in the file: the backbone's layers and those for MTP."""
        return self.layers + self.mtp_layers

    @property
    def head(self) -> int:
        """Dimensions of a query's head."""
        return self.nope + self.rope


def read_hyperparameters(
    metadata: Mapping[str, Value], vocab: int | None = None
) -> Hyperparameters:
    """A model's hyperparameters from its first file's metadata.

    Args:
        metadata: of `Model.metadata`.
        vocab: rows of `token_embd`, used where the metadata state no vocabulary.

    Raises:
        GgufError: keys are missing, of another type, or cannot be right; all are named.
    """
    reading = _Reading(metadata)
    made = _read(reading, vocab)
    problems = reading.problems or _impossible(made)
    if problems:
        raise GgufError(problems)
    return made


class _Reading:
    """Takes typed values under one architecture's prefix and collects what is wrong."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self.metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))
        self.problems: list[str] = []
        self.assumed: set[str] = set()

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def value(self, name: str) -> Value | None:
        return self.metadata.get(self.key(name))

    def has(self, name: str) -> bool:
        return self.key(name) in self.metadata

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        if value is None and default is not None:
            self.assumed.update(ASSUMED.get(name, ()))
            return default
        if isinstance(value, Array) and value.values and len(set(value.values)) == 1:
            value = value.values[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._wrong(name, value, "a whole number")
            return 1
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.value(name)
        if value is None and default is not None:
            self.assumed.update(ASSUMED.get(name, ()))
            return default
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value):  # type: ignore[arg-type]
            self._wrong(name, value, "a number")
            return 1.0
        return _decimal(value)  # type: ignore[arg-type]

    def truth(self, name: str, default: bool) -> bool:
        value = self.value(name)
        if value is None:
            self.assumed.update(ASSUMED.get(name, ()))
            return default
        if not isinstance(value, bool):
            self._wrong(name, value, "true or false")
        return bool(value)

    def _wrong(self, name: str, value: Value | None, right: str) -> None:
        found = "missing" if value is None else f"{_short(value)}"
        self.problems.append(f"metadata {self.key(name)} is {found}; {right} is needed")


def _short(value: Value) -> str:
    if isinstance(value, Array):
        return f"an array of {value.length} {value.kind}"
    return repr(value)[:60]


def _decimal(value: float) -> float:
    """The decimal that a float32 was written from: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _read(reading: _Reading, vocab: int | None) -> Hyperparameters:
    mtp = reading.whole("nextn_predict_layers", 0)
    rope = reading.whole("rope.dimension_count")
    key = "attention.key_length_mla"
    head = reading.whole(key if reading.has(key) else "attention.key_length")
    value = "attention.value_length_mla"
    layers = max(0, reading.whole("block_count") - mtp)
    gating = reading.whole("expert_gating_func", 2 if reading.architecture == "glm-dsa" else 1)
    if gating not in GATING:
        reading._wrong("expert_gating_func", gating, "1 (softmax) or 2 (sigmoid)")
    return Hyperparameters(
        architecture=reading.architecture,
        layers=layers,
        mtp_layers=mtp,
        hidden=reading.whole("embedding_length"),
        vocab=_vocab(reading, vocab),
        heads=reading.whole("attention.head_count"),
        q_lora=reading.whole("attention.q_lora_rank", 0) or None,
        kv_lora=reading.whole("attention.kv_lora_rank"),
        nope=max(0, head - rope),
        rope=rope,
        v=reading.whole(value if reading.has(value) else "attention.value_length"),
        intermediate=reading.whole("feed_forward_length"),
        dense_layers=reading.whole("leading_dense_block_count", 0),
        experts=reading.whole("expert_count"),
        experts_used=reading.whole("expert_used_count"),
        shared_experts=reading.whole("expert_shared_count", 0),
        moe_intermediate=reading.whole("expert_feed_forward_length"),
        expert_scale=reading.number("expert_weights_scale", 1.0),
        expert_norm=reading.truth("expert_weights_norm", False),
        gating=GATING.get(gating, "sigmoid"),
        groups=reading.whole("expert_group_count", 1) or 1,
        groups_used=reading.whole("expert_group_used_count", 1) or 1,
        eps=reading.number("attention.layer_norm_rms_epsilon"),
        rope_theta=reading.number("rope.freq_base", 10000.0),
        context=reading.whole("context_length"),
        indexer=_indexer(reading),
        indexer_types=_indexer_types(reading, layers),
        yarn=_yarn(reading),
        assumed=tuple(sorted(reading.assumed)),
    )


def _vocab(reading: _Reading, vocab: int | None) -> int:
    if reading.has("vocab_size"):
        return reading.whole("vocab_size")
    tokens = reading.metadata.get("tokenizer.ggml.tokens")
    if vocab is not None:
        return vocab
    return tokens.length if isinstance(tokens, Array) else reading.whole("vocab_size")


def _indexer(reading: _Reading) -> Indexer | None:
    names = [f"attention.indexer.{name}" for name in ("head_count", "key_length", "top_k")]
    if reading.architecture != "glm-dsa" and not any(reading.has(name) for name in names):
        return None
    return Indexer(*(reading.whole(name) for name in names))


def _indexer_types(reading: _Reading, layers: int) -> str | None:
    """From `types` (true is full), or `top_k_frequency` and `skip_top_k_offset` as some write."""
    if layers > MAX_BLOCKS:
        # Told elsewhere; a schedule for so many would fill the memory.
        return None
    types = reading.value("attention.indexer.types")
    if isinstance(types, Array) and types.values is not None:
        try:
            pattern = pattern_of(types.values)
        except ValueError as error:
            reading.problems.append(f"metadata {reading.key('attention.indexer.types')}: {error}")
            return None
        # Some writers give the MTP block an entry too.
        if len(pattern) < layers:
            reading._wrong("attention.indexer.types", types, f"one for each of {layers} layers")
        return pattern[:layers]
    if reading.has("attention.indexer.top_k_frequency"):
        frequency = reading.whole("attention.indexer.top_k_frequency")
        return schedule(layers, frequency, reading.whole("attention.indexer.skip_top_k_offset", 2))
    return None


def _yarn(reading: _Reading) -> Yarn | None:
    if reading.value("rope.scaling.type") != "yarn":
        return None
    return Yarn(
        reading.number("rope.scaling.factor"),
        reading.whole("rope.scaling.original_context_length"),
        reading.number("rope.scaling.yarn_log_multiplier", 0.0),
    )


def _impossible(hp: Hyperparameters) -> list[str]:
    prefix = hp.architecture
    checks = (
        (hp.layers > 0, f"{prefix}.block_count leaves no layer beside {hp.mtp_layers} MTP blocks"),
        (
            hp.blocks <= MAX_BLOCKS,
            f"{prefix}.block_count is {hp.blocks}; at most {MAX_BLOCKS} are allowed",
        ),
        (hp.nope > 0, f"{prefix}: a head's key length must exceed its {hp.rope} RoPE dimensions"),
        (
            hp.dense_layers <= hp.layers,
            f"{prefix}.leading_dense_block_count is {hp.dense_layers} of {hp.layers} layers",
        ),
        (
            hp.experts_used <= hp.experts,
            f"{prefix}.expert_used_count is {hp.experts_used} of {hp.experts} experts",
        ),
        (
            not hp.indexer_types or hp.indexer_types[0] == "F",
            f"{prefix}.attention.indexer.types: layer 0 is shared, but there is none before it",
        ),
    )
    found = [f"metadata {text}" for good, text in checks if not good]
    return found + [
        f"metadata {prefix}.{key} is {value:g}; more than 0 is needed"
        for key, value in _positive(hp).items()
        if value <= 0
    ]


def _positive(hp: Hyperparameters) -> dict[str, float]:
    """What no tensor's dimensions tell, or what would be divided by."""
    values: dict[str, float] = {
        "attention.head_count": hp.heads,
        "attention.kv_lora_rank": hp.kv_lora,
        "rope.dimension_count": hp.rope,
        "rope.freq_base": hp.rope_theta,
        "attention.layer_norm_rms_epsilon": hp.eps,
        "context_length": hp.context,
        "expert_used_count": hp.experts_used,
    }
    if hp.indexer is not None:
        values["attention.indexer.head_count"] = hp.indexer.heads
        values["attention.indexer.key_length"] = hp.indexer.head_dim
        values["attention.indexer.top_k"] = hp.indexer.topk
    return values


def pattern_of(types: tuple[object, ...] | list[object]) -> str:
    """`FSSF…` from `full`/`shared`, F/S, true/false or 1/0.

    Raises:
        ValueError: an entry is none of these.
    """
    known: dict[object, str] = {"full": "F", "shared": "S", "F": "F", "S": "S", 1: "F", 0: "S"}
    wrong = [value for value in types if not isinstance(value, int | str) or value not in known]
    if wrong:
        raise ValueError(f"{listed(map(repr, wrong))}; each is 'full' (true) or 'shared' (false)")
    return "".join(known[value] for value in types)


def schedule(layers: int, frequency: int, offset: int) -> str:
    """The pattern of `index_topk_freq` and `index_skip_topk_offset` (vLLM 0.26 deepseek_v2.py)."""
    frequency = max(1, frequency)
    return "".join(
        "F" if max(layer - offset + 1, 0) % frequency == 0 else "S" for layer in range(layers)
    )


@dataclass(frozen=True)
class IndexerPattern:
    """Which layers run their own indexer.

    Attributes:
        pattern: "F" or "S" for each layer, as vLLM's `index_topk_pattern` has it.
        origin: what says so.
    """

    pattern: str
    origin: str

    @property
    def full(self) -> int:
        """Layers that run their own."""
        return self.pattern.count("F")


GLM_5_2_CONTEXT = 1 << 20


def indexer_pattern(
    hp: Hyperparameters,
    present: frozenset[int] = frozenset(),
    config: Mapping[str, Any] | None = None,
) -> IndexerPattern | None:
    """Which layers run their own indexer, from the first that says so.

    The file's metadata; config.json; indexer tensors left out on some layers; a context of 2^20,
    by which llama.cpp tells GLM-5.2 where a file repeats the tensors on every layer and states no
    types (`glm-dsa.cpp`: full are 0, 1 and every fourth from 2). Else every layer is full.

    Args:
        hp: from the file.
        present: layers that have indexer tensors in the file.
        config: config.json as it stands, without a library's defaults.

    Returns:
        None without an indexer.

    Raises:
        GgufError: the config's entries are no pattern, or a layer that must run its own indexer
            has no tensors for it.
    """
    if hp.indexer is None:
        return None
    found = _pattern(hp, present, config or {})
    bare = [
        layer for layer, kind in enumerate(found.pattern) if kind == "F" and layer not in present
    ]
    if present and bare:
        raise GgufError(
            f"layers {listed(bare)} run their own indexer by {found.origin}, but the file has no "
            "indexer tensors for them"
        )
    return found


def _pattern(
    hp: Hyperparameters, present: frozenset[int], config: Mapping[str, Any]
) -> IndexerPattern:
    if hp.indexer_types is not None:
        return IndexerPattern(hp.indexer_types, "the file's attention.indexer.types")
    stated = config_pattern(config, hp.layers)
    if stated is not None:
        return IndexerPattern(stated, "config.json")
    backbone = {layer for layer in present if layer < hp.layers}
    if backbone and len(backbone) < hp.layers:
        pattern = "".join("F" if layer in backbone else "S" for layer in range(hp.layers))
        return IndexerPattern(pattern, "the layers that have indexer tensors")
    if hp.context >= GLM_5_2_CONTEXT:
        return IndexerPattern(schedule(hp.layers, 4, 3), "a context of 2^20 tokens: GLM-5.2")
    return IndexerPattern("F" * hp.layers, "nothing that says otherwise")


def config_pattern(config: Mapping[str, Any], layers: int) -> str | None:
    """What config.json says of the pattern, in the keys of transformers and of vLLM.

    Raises:
        GgufError: the entries are no pattern, or too few.
    """
    for key in ("index_topk_pattern", "indexer_types"):
        if config.get(key) is None:
            continue
        if not isinstance(config[key], list | tuple | str):
            raise GgufError(f"config.json: {key} is {config[key]!r:.60}; a list or a text is right")
        try:
            pattern = pattern_of(list(config[key]))
        except ValueError as error:
            raise GgufError(f"config.json: {key}: {error}") from None
        if len(pattern) < layers:
            raise GgufError(
                f"config.json: {key} has {len(pattern)} entries; one for each of {layers} layers "
                "is right"
            )
        return pattern[:layers]
    if config.get("index_topk_freq") is not None:
        frequency = _whole(config, "index_topk_freq")
        skipped = "index_skip_topk_offset"
        return schedule(layers, frequency, _whole(config, skipped) if skipped in config else 2)
    return None


def _whole(config: Mapping[str, Any], key: str) -> int:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise GgufError(f"config.json: {key} is {value!r:.60}; a whole number is right")
    return value


def hf_config(hp: Hyperparameters, pattern: IndexerPattern | None = None) -> dict[str, Any]:
    """The HF config that vLLM 0.26 needs, as far as the file states it.

    `topk_method` makes vLLM hold the router's correction bias; `indexer_rope_interleave` keeps the
    indexer from NeoX RoPE; `index_topk_pattern` is where vLLM reads shared layers from.
    """
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES[hp.architecture],
        "architectures": [MODEL_CLASSES[hp.architecture]],
        "hidden_size": hp.hidden,
        "num_hidden_layers": hp.layers,
        "num_nextn_predict_layers": hp.mtp_layers,
        "num_attention_heads": hp.heads,
        "num_key_value_heads": hp.heads,
        "vocab_size": hp.vocab,
        "intermediate_size": hp.intermediate,
        "moe_intermediate_size": hp.moe_intermediate,
        "first_k_dense_replace": hp.dense_layers,
        "n_routed_experts": hp.experts,
        "num_experts_per_tok": hp.experts_used,
        "n_shared_experts": hp.shared_experts or None,
        "n_group": hp.groups,
        "topk_group": hp.groups_used,
        "norm_topk_prob": hp.expert_norm,
        "routed_scaling_factor": hp.expert_scale,
        "scoring_func": hp.gating,
        "topk_method": "noaux_tc" if hp.gating == "sigmoid" else "group_limited_greedy",
        "q_lora_rank": hp.q_lora,
        "kv_lora_rank": hp.kv_lora,
        "qk_nope_head_dim": hp.nope,
        "qk_rope_head_dim": hp.rope,
        "v_head_dim": hp.v,
        "rms_norm_eps": hp.eps,
        "rope_theta": hp.rope_theta,
        "max_position_embeddings": hp.context,
        "hidden_act": "silu",
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    }
    return config | _rope_config(hp) | _indexer_config(hp, pattern)


def _rope_config(hp: Hyperparameters) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": hp.rope_theta, "rope_type": "default"}
    if hp.yarn is not None:
        # llama.cpp writes 0.1 times mscale_all_dim.
        mscale = _decimal(hp.yarn.log_multiplier * 10) or 1.0
        rope |= {
            "rope_type": "yarn",
            "factor": hp.yarn.factor,
            "original_max_position_embeddings": hp.yarn.original_context,
            "mscale": mscale,
            "mscale_all_dim": mscale,
        }
    return {"rope_parameters": rope}


def _indexer_config(hp: Hyperparameters, pattern: IndexerPattern | None) -> dict[str, Any]:
    if hp.indexer is None:
        return {}
    config: dict[str, Any] = {
        "index_n_heads": hp.indexer.heads,
        "index_head_dim": hp.indexer.head_dim,
        "index_topk": hp.indexer.topk,
        "indexer_rope_interleave": True,
    }
    if pattern is not None and "S" in pattern.pattern:
        config["index_topk_pattern"] = pattern.pattern
        config["indexer_types"] = ["full" if kind == "F" else "shared" for kind in pattern.pattern]
    return config


UNCHECKED = frozenset(
    {
        # A class that subclasses the right one will do.
        "architectures",
        # 1 or as many as heads: both describe MLA.
        "num_key_value_heads",
        # Where files leave the MTP block out and configs name it, or the other way round.
        "num_nextn_predict_layers",
        # A person may shorten or stretch it.
        "max_position_embeddings",
    }
)


def contradictions(
    config: Mapping[str, Any], hp: Hyperparameters, pattern: IndexerPattern | None = None
) -> list[str]:
    """Every key in which config.json and the file disagree, one sentence each.

    Args:
        config: config.json as it stands: a library's defaults are no statement.
        hp: from the file.
        pattern: of the file, to compare shared layers with.
    """
    try:
        stated = _flat(config)
    except GgufError as error:
        return list(error.problems)
    problems = []
    for key, right in _flat(hf_config(hp)).items():
        unchecked = key in UNCHECKED or key in hp.assumed
        if key in stated and not unchecked and not _agree(stated[key], right):
            problems.append(f"{key} is {stated[key]!r:.99} in config.json, {right!r} in the file")
    return problems + _pattern_contradiction(config, hp, pattern)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """With RoPE's parameters under one name each, old (`rope_theta`) and new spelling alike."""
    flat = {key: value for key, value in config.items() if key not in _ROPE_KEYS}
    rope: dict[str, Any] = {}
    for key in _ROPE_KEYS:
        if not isinstance(stated := config.get(key), Mapping | None):
            raise GgufError(f"config.json: {key} is {stated!r:.60}; an object is right")
        rope |= stated or {}
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    flat |= {key if key == "rope_theta" else f"rope {key}": rope[key] for key in rope}
    for key in ("indexer_types", "index_topk_pattern"):
        flat.pop(key, None)
    return flat


_ROPE_KEYS = ("rope_scaling", "rope_parameters")


def _agree(stated: Any, right: Any) -> bool:  # noqa: ANN401
    if isinstance(stated, bool) or isinstance(right, bool):
        return stated is right
    if isinstance(stated, int | float) and isinstance(right, int | float):
        try:
            return math.isclose(stated, right, rel_tol=1e-6)
        except OverflowError:
            return False
    return bool(stated == right)


def _pattern_contradiction(
    config: Mapping[str, Any], hp: Hyperparameters, pattern: IndexerPattern | None
) -> list[str]:
    if hp.indexer is None:
        return []
    try:
        stated = config_pattern(config, hp.layers)
    except GgufError as error:
        return list(error.problems)
    right = pattern.pattern if pattern is not None else hp.indexer_types
    if stated is None or right is None or stated == right:
        return []
    layers = [n for n in range(hp.layers) if stated[n] != right[n]]
    return [
        f"layers {listed(layers)} differ in whether they run their own indexer: "
        f"{stated} in config.json, {right} in the file"
    ]


def complete_config(
    config: Mapping[str, Any], hp: Hyperparameters, pattern: IndexerPattern | None = None
) -> dict[str, Any]:
    """`config` with all that it leaves out filled in from the file.

    What config.json states stays; where it contradicts the file, `contradictions` tells. The
    pattern of shared layers is written always, since vLLM reads no other key.
    """
    made = hf_config(hp, pattern)
    completed = made | {key: value for key, value in config.items() if value is not None}
    rope = dict(made["rope_parameters"])
    if "rope_theta" in config:
        rope["rope_theta"] = config["rope_theta"]
    for key in _ROPE_KEYS:
        stated = dict(config.get(key) or {})
        if "type" in stated:
            stated.setdefault("rope_type", stated.pop("type"))
        rope |= stated
    completed["rope_parameters"] = rope
    completed["rope_theta"] = rope["rope_theta"]
    for key in ("index_topk_pattern", "indexer_types"):
        if key in made:
            completed[key] = made[key]
    return completed
