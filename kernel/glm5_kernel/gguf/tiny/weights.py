"""Seeded random weights, scaled so that the model's answers depend on its input."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from glm5_kernel.gguf.names import weight_of
from glm5_kernel.gguf.tiny.spec import TinySpec, tensor_dims
from glm5_kernel.gguf.tiny.vocabulary import Vocabulary

Array = NDArray[np.float32]

GAINS: Mapping[str, float] = {
    # By measurement: the order of the context turns every answer (|Δ log p| of 1 on average), while
    # computing in bf16 moves the likeliest token's log-probability by 0.015 in the median. Twice
    # these, and bf16 answers otherwise at every tenth token.
    "attn_output": 0.7,
    "ffn_down": 0.35,
    "ffn_down_shexp": 0.35,
    "ffn_down_exps": 0.15,
    # Scores far apart: rounding rarely turns the choice of experts.
    "ffn_gate_inp": 2.0,
    "output": 4.0,
}


def make_tensor(spec: TinySpec, name: str, vocabulary: Vocabulary) -> Array:
    """A tensor's values in numpy's order (slowest dimension first), float32.

    Where all experts are equal, only one is made: the first dimension is then 1.

    Each is seeded by the model's seed and its own name, so that variants of a model share weights.
    """
    ne = tensor_dims(spec)[name]
    weight = weight_of(name, spec.hp)
    assert weight is not None
    role = weight.role.rsplit(".", 1)[0]
    if role == "attn_kv_b":
        return _whole_kv_b(spec, name)
    random = np.random.default_rng([spec.seed, zlib.crc32(name.encode())])
    if len(ne) == 1:
        return _vector(random, role, weight.role, ne[0])
    values = random.standard_normal(_drawn(spec, role, ne), dtype=np.float32)
    values *= np.float32(_scale(spec, role, ne))
    if role == "output":
        values[list(vocabulary.unspoken)] = 0
    return values


def _drawn(spec: TinySpec, role: str, ne: tuple[int, ...]) -> tuple[int, ...]:
    """What is drawn: where all experts are equal, one of them."""
    if role.endswith("_exps") and spec.same_experts:
        return (1, *ne[:-1][::-1])
    return ne[::-1]


def _vector(random: np.random.Generator, role: str, full: str, size: int) -> Array:
    values = random.standard_normal(size, dtype=np.float32) * np.float32(0.1)
    bias = full.endswith(".bias") or role == "exp_probs_b"
    return values if bias else values + np.float32(1)


def _scale(spec: TinySpec, role: str, ne: tuple[int, ...]) -> float:
    """Of one over the root of what is summed over; k_b is stored transposed."""
    if role == "token_embd":
        return 1.0
    summed = spec.hp.kv_lora if role == "attn_k_b" else ne[0]
    return GAINS.get(role, 1.0) / math.sqrt(summed)


def _whole_kv_b(spec: TinySpec, name: str) -> Array:
    """The same values that k_b and v_b have when they are apart."""
    hp = spec.hp
    halves = []
    for half, rows in (("k_b", hp.nope), ("v_b", hp.v)):
        part = name.replace("attn_kv_b", f"attn_{half}")
        random = np.random.default_rng([spec.seed, zlib.crc32(part.encode())])
        shape = (hp.heads, hp.kv_lora, rows) if half == "k_b" else (hp.heads, rows, hp.kv_lora)
        values = random.standard_normal(shape, dtype=np.float32)
        halves.append(values * np.float32(1 / math.sqrt(hp.kv_lora)))
    whole = np.concatenate([halves[0].transpose(0, 2, 1), halves[1]], axis=1)
    return np.ascontiguousarray(whole.reshape(-1, hp.kv_lora))
