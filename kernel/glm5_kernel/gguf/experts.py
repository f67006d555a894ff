"""Routed experts whose weights stay quantised.

Each projection takes the kernel that its own type has: vllm-gguf-plugin 0.0.5 wants one type for
gate and up, and one family for all three. A few tokens go by matrix-vector products; more by
matrix products, for those types that have a kernel for it.
"""

from __future__ import annotations

import torch

from glm5_kernel.gguf.cpu.ops import through_experts
from glm5_kernel.gguf.types import TYPES

MATRIX_FROM = 65
"""Tokens from which the matrix kernel is the faster (the plugin's choice)."""


def apply_experts(
    x: torch.Tensor,
    gate_up: list[torch.Tensor],
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up_kinds: list[int],
    down_kind: int,
    activation: str,
) -> torch.Tensor:
    """The weighted sum of the chosen experts' outputs.

    Args:
        x: [tokens, hidden].
        gate_up: uint8 [experts, 2 * width, bytes], or gate and up apart, where types differ.
        down: uint8 [experts, hidden, bytes].
        weights: [tokens, chosen], of each chosen expert.
        ids: [tokens, chosen], their numbers.
        gate_up_kinds: ggml's numbers of the types of `gate_up`.
        down_kind: of `down`.
        activation: vLLM's name: `silu`, …

    Returns:
        [tokens, hidden] in x's dtype.
    """
    tokens, chosen = ids.shape
    if tokens == 0:
        return torch.empty_like(x)
    project = through_experts if x.device.type == "cpu" else _project_gpu
    parts = [project(x, each, ids, kind) for each, kind in zip(gate_up, gate_up_kinds, strict=True)]
    between = _activate(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), activation)
    out = project(between, down, ids.reshape(-1, 1), down_kind)
    return out.view(tokens, chosen, -1).mul_(weights.to(x.dtype).unsqueeze(-1)).sum(1)


def _activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    if x.device.type == "cpu" and activation == "silu":
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    from vllm.model_executor.layers.fused_moe.activation import (
        MoEActivation,
        apply_moe_activation,
    )

    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    apply_moe_activation(MoEActivation.from_str(activation), out, x)
    return out


def _project_gpu(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, kind: int
) -> torch.Tensor:
    """[tokens * chosen, rows]: row t * chosen + c is token t through its c-th expert."""
    from vllm_gguf_plugin import ops

    tokens, chosen = ids.shape
    rows = weight.shape[1]
    if tokens < MATRIX_FROM or TYPES[kind].kernel == "iq":
        found: torch.Tensor = ops.ggml_moe_a8_vec(x, weight, ids, chosen, kind, rows, tokens)
        return found
    from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size

    block = ops.ggml_moe_get_block_size(kind)
    order, experts, padded = moe_align_block_size(ids, block, weight.shape[0])
    matrix: torch.Tensor = ops.ggml_moe_a8(
        x, weight, order, experts, padded, kind, rows, chosen, tokens
    )
    return matrix
