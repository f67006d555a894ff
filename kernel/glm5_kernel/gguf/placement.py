"""Which parameter of vLLM's model a tensor of a file belongs to.

vLLM fuses several weights of a checkpoint into one parameter and nests others (deepseek_v2.py and
deepseek_mtp.py, 0.26). One canonical name serves the prefix by which a layer asks for its
quantisation method, and the path by which its parameters are found afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm5_kernel.gguf.hyperparameters import Hyperparameters
from glm5_kernel.gguf.names import EXPERT, Weight


@dataclass(frozen=True)
class Spot:
    """Where a weight goes.

    Attributes:
        module: canonical name of vLLM's module: `model.layers.3.self_attn.fused_qkv_a_proj`.
        leaf: `weight`, `bias` or `e_score_correction_bias`.
        part: its place among the fused weights, from 0: rows of a linear layer in this order; of
            experts gate, up and down.
    """

    module: str
    leaf: str
    part: int = 0


_FUSED = {
    ".q_a_proj": (".fused_qkv_a_proj", 0),
    ".kv_a_proj_with_mqa": (".fused_qkv_a_proj", 1),
    ".gate_proj": (".gate_up_proj", 0),
    ".up_proj": (".gate_up_proj", 1),
    ".indexer.wk": (".indexer.wk_weights_proj", 0),
    ".indexer.weights_proj": (".indexer.wk_weights_proj", 1),
}

GATE, UP, DOWN = 0, 1, 2
_EXPERT_PARTS = {"gate_proj": GATE, "up_proj": UP, "down_proj": DOWN}


def spot_of(weight: Weight, hp: Hyperparameters) -> Spot:
    """Where vLLM's model holds a weight that it has a name for (`weight.hf` is not empty)."""
    path, leaf = weight.hf.rsplit(".", 1)
    if EXPERT in path:
        experts, projection = path.split(f".{EXPERT}.")
        return Spot(experts, leaf, _EXPERT_PARTS[projection])
    if weight.role == "nextn.embed_tokens.weight":
        return Spot("model.embed_tokens", leaf)
    for end, (fused, part) in _FUSED.items():
        if path.endswith(end) and not (hp.q_lora is None and fused == ".fused_qkv_a_proj"):
            return Spot(path.removesuffix(end) + fused, leaf, part)
    return Spot(path, leaf)


def canonical(path: str) -> str:
    """The canonical name of a module, from its path in the model or from the prefix given to it.

    The MTP layer's block is nested in `mtp_block`, its head's prefix lacks `shared_head`; the
    experts' weights are nested in `routed_experts`.
    """
    path = path.replace(".mtp_block", "").removesuffix(".routed_experts")
    if path.startswith("model.layers.") and path.count(".") == 3 and path.endswith(".head"):
        return path.removesuffix(".head") + ".shared_head.head"
    return path
