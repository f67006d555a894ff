"""Loads every rank's part of a model in turn, and puts the model together again.

What belongs where is written here once more, independently of the adapter: by the names of a
checkpoint, the axis along which ranks share a weight, and the order of fused parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import vllm.distributed.parallel_state as state
from glm5_kernel.gguf.hyperparameters import Hyperparameters
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model


class Group:
    """A process group of which this is one member."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = self.rank_in_group = rank
        self.world_size = size
        self.ranks = list(range(size))
        self.device_group = self.cpu_group = self
        self.is_first_rank, self.is_last_rank = rank == 0, rank == size - 1
        self.device = torch.device("cpu")

    def size(self) -> int:
        return self.world_size


ALONE = ("_PP", "_EP", "_DP", "_PCP", "_DCP")


def play_rank(rank: int, size: int) -> None:
    """Make vLLM believe that this is one of `size` ranks."""
    state._TP = state._WORLD = Group(rank, size)
    for name in ALONE:
        setattr(state, name, Group(0, 1))


def config_for(path: Path, **arguments: Any) -> Any:  # noqa: ANN401
    """vLLM's config for `--model path`."""
    play_rank(0, 1)
    arguments = {"dtype": "bfloat16", "max_model_len": 128, "enforce_eager": True} | arguments
    return EngineArgs(model=str(path), **arguments).create_engine_config()


def load_rank(path: Path, rank: int = 0, size: int = 1, **arguments: Any) -> Any:  # noqa: ANN401
    """The model as this rank holds it after loading."""
    return load_with(config_for(path, **arguments), rank, size)


def load_ranks(path: Path, size: int, **arguments: Any) -> Iterator[Any]:  # noqa: ANN401
    """The model as each rank holds it, one after the other."""
    config = config_for(path, **arguments)
    for rank in range(size):
        config.compilation_config.static_forward_context.clear()
        yield load_with(config, rank, size)


def load_with(config: Any, rank: int, size: int) -> Any:  # noqa: ANN401
    play_rank(rank, size)
    with set_current_vllm_config(config):
        return get_model(vllm_config=config)


def load_draft(path: Path, **arguments: Any) -> Any:  # noqa: ANN401
    """The MTP draft's model, as the proposer loads it."""
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    config = config_for(path, speculative_config=speculative, **arguments)
    play_rank(0, 1)
    with set_current_vllm_config(config):
        get_model(vllm_config=config)
        return get_model(
            vllm_config=config, model_config=config.speculative_config.draft_model_config
        )


def values_of(module: Any) -> torch.Tensor:  # noqa: ANN401
    """A linear layer's weight or a table, decoded by gguf-py, float32 [rows, columns]."""
    weights = getattr(module, "gguf_weights", None)
    if weights is None:
        return module.weight.detach().float().cpu()
    return torch.cat([decoded(getattr(module, name), kind) for name, kind in weights])


def decoded(weight: torch.Tensor, kind: int) -> torch.Tensor:
    values = gguf.quants.dequantize(weight.cpu().numpy(), gguf.GGMLQuantizationType(kind))
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


@dataclass(frozen=True)
class Shared:
    """How ranks share a weight: its name in a checkpoint and the axis; None: each has it whole."""

    name: str
    axis: int | None


def parts_of(model: Any, hp: Hyperparameters, tp: int) -> dict[Shared, torch.Tensor]:  # noqa: ANN401
    """What one rank holds, under the names of a checkpoint, in float32."""
    found: dict[Shared, torch.Tensor] = {
        Shared("model.embed_tokens.weight", 0): values_of(model.model.embed_tokens),
        Shared("lm_head.weight", 0): values_of(model.lm_head),
        Shared("model.norm.weight", None): model.model.norm.weight.float(),
    }
    for number, layer in enumerate(model.model.layers):
        for name, value in layer_parts(layer, hp, tp).items():
            found[Shared(f"model.layers.{number}.{name.name}", name.axis)] = value
    return {name: value.detach().cpu() for name, value in found.items()}


def layer_parts(layer: Any, hp: Hyperparameters, tp: int) -> dict[Shared, torch.Tensor]:  # noqa: ANN401
    found = {
        Shared("input_layernorm.weight", None): layer.input_layernorm.weight.float(),
        Shared("post_attention_layernorm.weight", None): (
            layer.post_attention_layernorm.weight.float()
        ),
    }
    for name, value in attention_parts(layer.self_attn, hp).items():
        found[Shared(f"self_attn.{name.name}", name.axis)] = value
    mlp = layer.mlp
    if not hasattr(mlp, "experts"):
        return found | mlp_parts("mlp", mlp)
    found |= mlp_parts("mlp.shared_experts", mlp.shared_experts)
    found[Shared("mlp.gate.weight", None)] = mlp.gate.weight.float()
    bias = mlp.gate.e_score_correction_bias
    if bias is not None:
        found[Shared("mlp.gate.e_score_correction_bias", None)] = bias.float()
    return found | expert_parts(mlp.experts.routed_experts, hp.moe_intermediate // tp)


def attention_parts(attention: Any, hp: Hyperparameters) -> dict[Shared, torch.Tensor]:  # noqa: ANN401
    sizes = [hp.q_lora or 0, hp.kv_lora + hp.rope]
    q_a, kv_a = values_of(attention.fused_qkv_a_proj).split(sizes)
    found = {
        Shared("q_a_proj.weight", None): q_a,
        Shared("kv_a_proj_with_mqa.weight", None): kv_a,
        Shared("q_a_layernorm.weight", None): attention.q_a_layernorm.weight.float(),
        Shared("kv_a_layernorm.weight", None): attention.kv_a_layernorm.weight.float(),
        Shared("q_b_proj.weight", 0): values_of(attention.q_b_proj),
        Shared("kv_b_proj.weight", 0): values_of(attention.kv_b_proj),
        Shared("o_proj.weight", 1): values_of(attention.o_proj),
    }
    indexer = attention.indexer
    if indexer is None or hp.indexer is None:
        return found
    wk, proj = values_of(indexer.wk_weights_proj).split([hp.indexer.head_dim, hp.indexer.heads])
    return found | {
        Shared("indexer.wk.weight", None): wk,
        Shared("indexer.weights_proj.weight", None): proj,
        Shared("indexer.wq_b.weight", None): values_of(indexer.wq_b),
        Shared("indexer.k_norm.weight", None): indexer.k_norm.weight.float(),
        Shared("indexer.k_norm.bias", None): indexer.k_norm.bias.float(),
    }


def mlp_parts(prefix: str, mlp: Any) -> dict[Shared, torch.Tensor]:  # noqa: ANN401
    gate, up = values_of(mlp.gate_up_proj).chunk(2)
    return {
        Shared(f"{prefix}.gate_proj.weight", 0): gate,
        Shared(f"{prefix}.up_proj.weight", 0): up,
        Shared(f"{prefix}.down_proj.weight", 1): values_of(mlp.down_proj),
    }


def expert_parts(experts: Any, width: int) -> dict[Shared, torch.Tensor]:  # noqa: ANN401
    if hasattr(experts, "w13_weight"):
        both, down = experts.w13_weight.float(), experts.w2_weight.float()
    else:
        names = experts.gguf_gate_up
        both = torch.cat([decoded(getattr(experts, name), kind) for name, kind in names], 1)
        down = decoded(experts.w2_qweight, experts.gguf_down)
    return {
        Shared("mlp.experts.gate", 1): both[:, :width],
        Shared("mlp.experts.up", 1): both[:, width:],
        Shared("mlp.experts.down", 2): down,
    }


def put_together(ranks: list[dict[Shared, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The whole model, from what every rank holds."""
    whole = {}
    for shared in ranks[0]:
        parts = [rank[shared] for rank in ranks]
        if shared.axis is None:
            assert all(torch.equal(part, parts[0]) for part in parts), shared.name
            whole[shared.name] = parts[0]
        else:
            whole[shared.name] = torch.cat(parts, shared.axis)
    return whole
