"""A small `glm_moe_dsa` model with fixed random weights, made the same on every machine.

The dimensions that kernels depend on are GLM-5's own (192 + 64 query dims, latent 512, values 256,
indexer 32 × 128). The weights come from numpy's PCG64, whose stream is the same everywhere, and
are shaped so that log-probabilities say something about attention:

- Attention is sharp (a few dozen of thousands of tokens carry a head), and its output is most of
  the final hidden state, so a wrong selection or a wrong weight moves every log-probability.
- The indexer scores with the projections that the attention logits use, as training would make
  it: what is selected or left out at the limit of the top-k carries little weight, so a near tie
  that two correct kernels break differently does little, while a wrong selection does much.
- A few hidden dims hold a constant, from which the indexer's head weights get their sign; nothing
  else reads them, or the mean of the values would drown what was selected.
- Experts add little: a routing decision that rounding turns must not hide what is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SEED = 20261129
HIDDEN, LAYERS, HEADS, VOCAB = 1024, 4, 16, 4096
Q_LORA, LATENT, NOPE, ROPE, VALUE = 512, 512, 192, 64, 256
INDEX_HEADS, INDEX_DIM = 32, 128
EXPERTS, EXPERT_INNER, DENSE_INNER = 16, 256, 2048
CONSTANT = 8  # hidden dims that hold CONSTANT_VALUE for every token
CONSTANT_VALUE = 3.0
CONTENT = 64  # dims in which attention and indexer look alike
GROUPS = 2  # query projections that heads and indexer heads share
POSITIONS = 16384
INDEXERS = "FFSF"  # the third layer shares the second's top-k
DEEP = 24  # layers where speed is measured: with fewer the GPU waits for the processor

CONTENT_SCALE = 2.0  # of the content and the rope part of the attention logits, whose standard
ROPE_SCALE = 2.0  # deviation is about half of it; without rope, greedy decoding falls into a loop
VALUE_SCALE = 3.0
LOGIT_SCALE = 3.0


def pattern(layers: int) -> str:
    """Which layers have an indexer; the fifth and later repeat the second to fourth."""
    return "".join(INDEXERS[source(layer)] for layer in range(layers))


def source(layer: int) -> int:
    """The layer whose weights it has."""
    return layer if layer < LAYERS else 1 + (layer - 1) % (LAYERS - 1)


def config(topk: int, layers: int = LAYERS) -> dict[str, Any]:
    """The model's config.json. `topk_method` and `indexer_rope_interleave` are for vLLM."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_INNER,
        "moe_intermediate_size": EXPERT_INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": Q_LORA,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "index_topk": topk,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "index_topk_pattern": pattern(layers),
        "indexer_types": [{"F": "full", "S": "shared"}[kind] for kind in pattern(layers)],
        "indexer_rope_interleave": True,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "max_position_embeddings": POSITIONS,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


class Maker:
    """Random matrices from one stream, in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.stream = np.random.Generator(np.random.PCG64(seed))

    def normal(self, rows: int, columns: int, scale: float) -> Array:
        """Such that a vector of unit entries comes out with entries of `scale`."""
        values = self.stream.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(scale / columns**0.5)

    def reading(self, rows: int, scale: float) -> Array:
        """A projection of the hidden state, blind to the dims that are constant."""
        matrix = self.normal(rows, HIDDEN, scale)
        matrix[:, :CONSTANT] = 0
        return matrix


def no_constants(matrix: Array) -> Array:
    """The matrix, its first rows zero: nothing is added to the hidden dims that are constant."""
    matrix[:CONSTANT] = 0
    return matrix


@dataclass(frozen=True)
class Selection:
    """What a layer's attention and its indexer have in common; shared layers share it, too.

    Args:
        queries: [Q_LORA, HIDDEN], makes the query latent.
        keys: [ROPE + CONTENT, HIDDEN].
        groups: of [ROPE + CONTENT, Q_LORA]; each head uses one of them.
    """

    queries: Array
    keys: Array
    groups: tuple[Array, ...]


def selection(make: Maker) -> Selection:
    """A random one."""
    groups = tuple(make.normal(ROPE + CONTENT, Q_LORA, 1.0) for _ in range(GROUPS))
    return Selection(make.reading(Q_LORA, 1.0), make.reading(ROPE + CONTENT, 1.0), groups)


def attention(make: Maker, layer: int, chosen: Selection) -> Iterator[tuple[str, Array]]:
    """Projections of one layer's attention, and of its indexer where it has one."""
    name = f"model.layers.{layer}.self_attn"
    rope, content = chosen.keys[:ROPE], chosen.keys[ROPE:]
    latent = np.concatenate([content, make.reading(LATENT - CONTENT, 1.0)])
    yield f"{name}.q_a_proj.weight", chosen.queries
    yield f"{name}.q_a_layernorm.weight", np.ones(Q_LORA, np.float32)
    yield f"{name}.kv_a_proj_with_mqa.weight", np.concatenate([latent, rope])
    yield f"{name}.kv_a_layernorm.weight", np.ones(LATENT, np.float32)
    queries, keys_values = [], []
    for head in range(HEADS):
        group = chosen.groups[head % GROUPS]
        query = make.normal(NOPE + ROPE, Q_LORA, 1.0)
        query[-ROPE:] += ROPE_SCALE * group[:ROPE]
        query[:CONTENT] += CONTENT_SCALE * group[ROPE:]
        key = make.normal(NOPE, LATENT, 0.7)
        key[:CONTENT] = np.eye(CONTENT, LATENT, dtype=np.float32)
        queries.append(query)
        keys_values += [key, make.normal(VALUE, LATENT, VALUE_SCALE)]
    yield f"{name}.q_b_proj.weight", np.concatenate(queries)
    yield f"{name}.kv_b_proj.weight", np.concatenate(keys_values)
    yield f"{name}.o_proj.weight", no_constants(make.normal(HIDDEN, HEADS * VALUE, 1.0))
    if INDEXERS[layer] == "F":
        yield from indexer(make, f"{name}.indexer", chosen)


def indexer(make: Maker, name: str, chosen: Selection) -> Iterator[tuple[str, Array]]:
    """Rope dims come first. Three of four heads score as the attention does."""
    yield f"{name}.wk.weight", chosen.keys
    yield f"{name}.k_norm.weight", np.ones(INDEX_DIM, np.float32)
    yield f"{name}.k_norm.bias", make.normal(INDEX_DIM, 1, 0.05)[:, 0]
    queries = []
    for head in range(INDEX_HEADS):
        query = make.normal(INDEX_DIM, Q_LORA, 0.25)
        if head % 4 != 3:
            group = chosen.groups[head % GROUPS]
            query[:ROPE] += ROPE_SCALE / CONTENT_SCALE * group[:ROPE]
            query[ROPE:] += group[ROPE:]
        queries.append(query)
    yield f"{name}.wq_b.weight", np.concatenate(queries)
    weights = make.reading(INDEX_HEADS, 0.3)
    weights[:, :CONSTANT] = 0.1
    yield f"{name}.weights_proj.weight", weights


def mlp(make: Maker, name: str, inner: int, scale: float) -> Iterator[tuple[str, Array]]:
    """A gated MLP whose output has entries of about `scale`."""
    yield f"{name}.gate_proj.weight", make.reading(inner, 1.0)
    yield f"{name}.up_proj.weight", make.reading(inner, 1.0)
    yield f"{name}.down_proj.weight", no_constants(make.normal(HIDDEN, inner, 1.7 * scale))


def tensors(seed: int = SEED) -> Iterator[tuple[str, Array]]:
    """Every tensor of the model in float32; they do not depend on the top-k."""
    make = Maker(seed)
    embedding = make.normal(VOCAB, HIDDEN, HIDDEN**0.5)
    embedding[:, :CONSTANT] = CONSTANT_VALUE
    yield "model.embed_tokens.weight", embedding
    chosen = selection(make)
    for layer in range(LAYERS):
        if layer and INDEXERS[layer] == "F":
            chosen = selection(make)
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", np.ones(HIDDEN, np.float32)
        yield from attention(make, layer, chosen)
        if layer == 0:
            yield from mlp(make, f"{name}.mlp", DENSE_INNER, 0.4)
            continue
        yield f"{name}.mlp.gate.weight", make.reading(EXPERTS, 1.0)
        bias = make.normal(EXPERTS, 1, 0.05)[:, 0]
        yield f"{name}.mlp.gate.e_score_correction_bias", bias
        yield from mlp(make, f"{name}.mlp.shared_experts", EXPERT_INNER, 0.3)
        for expert in range(EXPERTS):
            yield from mlp(make, f"{name}.mlp.experts.{expert}", EXPERT_INNER, 0.05)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    yield "lm_head.weight", make.reading(VOCAB, LOGIT_SCALE)


def to_bfloat16(values: Array) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; no value may be NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def safetensors(named: dict[str, tuple[str, NDArray[Any]]]) -> bytes:
    """A safetensors file: header length, JSON header, data.

    Written by hand because its numpy writer has no bfloat16 and this must not need torch.
    """
    return written({n: (d, values.shape, values.tobytes()) for n, (d, values) in named.items()})


def written(named: dict[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file from each tensor's dtype, shape and bytes."""
    header, data, start = {}, [], 0
    for name, (dtype, shape, raw) in named.items():
        end = start + len(raw)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        data.append(raw)
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def weights(seed: int = SEED) -> bytes:
    """The safetensors file: bfloat16, except for the router's correction bias (float32)."""
    named: dict[str, tuple[str, NDArray[Any]]] = {}
    for name, values in tensors(seed):
        if name.endswith("e_score_correction_bias"):
            named[name] = ("F32", values)
        else:
            named[name] = ("BF16", to_bfloat16(values))
    return safetensors(named)


def deepened(data: bytes, layers: int) -> bytes:
    """The safetensors file with so many layers: those after the model's own are copies."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for name, each in header.items():
        start, end = (8 + size + offset for offset in each["data_offsets"])
        found[name] = (each["dtype"], tuple(each["shape"]), data[start:end])
    for layer in range(LAYERS, layers):
        prefix, own = f"model.layers.{source(layer)}.", f"model.layers.{layer}."
        copies = {own + n.removeprefix(prefix): v for n, v in found.items() if n.startswith(prefix)}
        found |= copies
    return written(found)


def tokenizer() -> dict[str, Any]:
    """A tokenizer.json with one word for each token, split at white space."""
    words = ["<pad>", "<s>", "</s>", *(f"t{token}" for token in range(3, VOCAB))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": words[token], "special": True, **special} for token in range(3)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": "<pad>",
        },
    }


def build(folder: Path, topk: int, data: bytes, layers: int = LAYERS) -> Path:
    """Write the model with that top-k and so many layers, `data` being `weights()`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(topk, layers), indent=1))
    (folder / "model.safetensors").write_bytes(data if layers == LAYERS else deepened(data, layers))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": POSITIONS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def fingerprint(data: bytes) -> str:
    """Short hash of the weights, which results carry along."""
    return hashlib.sha256(data).hexdigest()[:12]
