"""What transformers holds and answers for the weights of a GGUF file: the reference of all tests.

The weights are those of the file, dequantised to float32, so that a comparison tells the loading
and the computing apart from what quantisation costs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.names import weight_of
from glm5_kernel.gguf.tiny.codec import decode, package
from glm5_kernel.gguf.types import TYPES

Array = NDArray[np.float32]


def read_tensors(paths: Iterable[str | Path]) -> dict[str, Array]:
    """Every tensor of all shards, dequantised, in numpy's order. By gguf-py's own reader."""
    gguf = package("gguf", "reading a GGUF file's weights")
    tensors: dict[str, Array] = {}
    for path in paths:
        for tensor in gguf.GGUFReader(path).tensors:
            shape = tuple(int(n) for n in reversed(tensor.shape))
            kind = TYPES[int(tensor.tensor_type)]
            tensors[tensor.name] = decode(tensor.data, kind).reshape(shape)
    return tensors


def kv_b_proj(tensors: Mapping[str, Array], layer: int, hp: Hyperparameters) -> Array:
    """A layer's `kv_b_proj.weight` [heads * (nope + v), kv_lora] from any form a file has it in.

    k_b is [heads, kv_lora, nope], transposed; v_b [heads, v, kv_lora]; older files have both with
    two dimensions, or `attn_kv_b` whole.
    """
    whole = tensors.get(f"blk.{layer}.attn_kv_b.weight")
    if whole is not None:
        return whole
    k = tensors[f"blk.{layer}.attn_k_b.weight"].reshape(hp.heads, hp.kv_lora, hp.nope)
    v = tensors[f"blk.{layer}.attn_v_b.weight"].reshape(hp.heads, hp.v, hp.kv_lora)
    both = np.concatenate([k.transpose(0, 2, 1), v], axis=1)
    return np.ascontiguousarray(both.reshape(-1, hp.kv_lora))


def checkpoint(
    tensors: Mapping[str, Array], hp: Hyperparameters, pattern: IndexerPattern | None
) -> dict[str, Array]:
    """The weights under a checkpoint's names, as transformers holds them; no MTP block.

    gate and up of all experts are one tensor there, [experts, 2 * width, hidden]. Shared layers
    have no indexer, whether the file repeats its tensors or not.
    """
    found: dict[str, Array] = {}
    for name, values in tensors.items():
        weight = weight_of(name, hp)
        if weight is None or not weight.hf or weight.kind in ("kv_b", "experts"):
            continue
        if weight.layer is not None and _left_out(weight.kind, weight.layer, hp, pattern):
            continue
        found[weight.hf] = values
    for layer in range(hp.layers):
        prefix = f"model.layers.{layer}."
        found[f"{prefix}self_attn.kv_b_proj.weight"] = kv_b_proj(tensors, layer, hp)
        if layer >= hp.dense_layers:
            gate, up, down = (
                tensors[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")
            )
            found[f"{prefix}mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            found[f"{prefix}mlp.experts.down_proj"] = down
    return found


def _left_out(kind: str, layer: int, hp: Hyperparameters, pattern: IndexerPattern | None) -> bool:
    shared = pattern is not None and layer < hp.layers and pattern.pattern[layer] == "S"
    return layer >= hp.layers or (kind == "indexer" and shared)


def build_model(
    config: Mapping[str, Any], tensors: Mapping[str, Array], hp: Hyperparameters,
    pattern: IndexerPattern | None,
) -> Any:  # noqa: ANN401  # fmt: skip
    """transformers' `GlmMoeDsaForCausalLM` in float32 on the CPU, with these weights.

    Its q_a and kv_a layer norms use an epsilon of 1e-6 whatever the config says (5.24); vLLM and
    llama.cpp use the config's, so that is put right.

    Args:
        config: config.json, complete.
        tensors: from `read_tensors`.
        hp: the file's hyperparameters.
        pattern: which layers run their own indexer.

    Raises:
        MissingPackageError: transformers or torch is not installed.
        ValueError: a weight is missing, left over or of another shape.
    """
    torch = package("torch", "the reference")
    transformers = package("transformers", "the reference")
    settings = {key: value for key, value in config.items() if key != "architectures"}
    if pattern is not None:
        settings["indexer_types"] = [
            "full" if kind == "F" else "shared" for kind in pattern.pattern
        ]
    made = transformers.GlmMoeDsaConfig(**settings)
    made._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.GlmMoeDsaForCausalLM(made)
    state = {
        name: torch.from_numpy(np.require(values, requirements=["C", "W"]))
        for name, values in checkpoint(tensors, hp, pattern).items()
    }
    model = model.to_empty(device="cpu").float().eval()
    _load(model, state)
    for layer in model.model.layers:
        layer.self_attn.q_a_layernorm.variance_epsilon = hp.eps
        layer.self_attn.kv_a_layernorm.variance_epsilon = hp.eps
    return model


def _load(model: Any, state: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Load a state dict that must be whole; buffers that are made, not stored, are made again."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    stored = set(model.state_dict())
    problems = [f"{name}: missing" for name in sorted(stored - set(state))]
    problems += [f"{name}: not in the model" for name in sorted(set(state) - stored)]
    problems += [
        f"{name}: {list(state[name].shape)}; {list(own[name].shape)} is right"
        for name in sorted(stored & set(state))
        if state[name].shape != own[name].shape
    ]
    if problems:
        raise ValueError("\n".join(problems))
    model.load_state_dict(state)
    rotary = model.model.rotary_emb
    frequencies, _ = rotary.compute_default_rope_parameters(model.config)
    rotary.inv_freq.copy_(frequencies)
    rotary.original_inv_freq.copy_(frequencies)


def log_probabilities(model: Any, tokens: list[int]) -> Any:  # noqa: ANN401
    """Of every next token after each of `tokens`: float32 [len(tokens), vocab], a torch tensor."""
    torch = package("torch", "the reference")
    with torch.no_grad():
        given = torch.tensor([tokens], device=model.device)
        logits = model(given, use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


def greedy(
    model: Any,  # noqa: ANN401
    prompt: list[int],
    count: int,
    least: float = 0.0,
) -> tuple[list[int], float] | None:
    """The `count` likeliest tokens after `prompt`, one after the other, with a cache.

    Args:
        model: from `build_model`.
        prompt: token ids.
        count: tokens.
        least: give up where the likeliest is not so far above the second, in log-probability.

    Returns:
        The tokens and the least such distance among them; None where it was given up.
    """
    torch = package("torch", "the reference")
    # The argument has two names among the versions of transformers.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    tokens: list[int] = []
    cache, step, margin = None, torch.tensor([prompt], device=model.device), math.inf
    for _ in range(count):
        with torch.no_grad():
            out = model(step, use_cache=True, **{name: cache})
        cache = out.past_key_values
        best = out.logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        if margin <= least:
            return None
        tokens.append(int(best.indices[0]))
        step = torch.tensor([tokens[-1:]], device=model.device)
    return tokens, margin
