"""Products with weights that stay quantised: linear layers, embeddings, experts.

On a GPU by vllm-gguf-plugin's kernels. Elsewhere a weight is decoded first. Each is a custom
operation, so that torch.compile and CUDA graphs take it as it is; quantisation types are ggml's
numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from glm5_kernel.gguf.decoding import decode_rows
from glm5_kernel.gguf.types import TYPES


def dequantise(weight: torch.Tensor, kind: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of uint8 [rows, bytes], in `dtype` on the same device.

    Args:
        weight: rows of whole blocks.
        kind: ggml's number of their type.
        dtype: of the result.
    """
    quant = TYPES[kind]
    if weight.device.type == "cpu":
        return torch.from_numpy(decode_rows(weight.numpy(), quant)).to(dtype)
    from vllm_gguf_plugin import ops

    rows, columns = weight.shape[0], weight.shape[1] // quant.size * quant.block
    found: torch.Tensor = ops.ggml_dequantize(weight.contiguous(), kind, rows, columns, dtype)
    return found


def _linear(x: torch.Tensor, weight: torch.Tensor, kind: int) -> torch.Tensor:
    if x.device.type == "cpu":
        return x @ dequantise(weight, kind, x.dtype).T
    from vllm_gguf_plugin.quantization.linear import _fused_mul_mat_gguf

    found: torch.Tensor = _fused_mul_mat_gguf(x.contiguous(), weight, kind)
    return found


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, _kind: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _embedding(
    ids: torch.Tensor, weight: torch.Tensor, kind: int, dtype: torch.dtype
) -> torch.Tensor:
    rows = weight.index_select(0, ids.flatten())
    return dequantise(rows, kind, dtype).view(*ids.shape, -1)


def _embedding_fake(
    ids: torch.Tensor, weight: torch.Tensor, kind: int, dtype: torch.dtype
) -> torch.Tensor:
    columns = weight.shape[1] // TYPES[kind].size * TYPES[kind].block
    return ids.new_empty(*ids.shape, columns, dtype=dtype)


def _experts_fake(
    x: torch.Tensor,
    _gate_up: list[torch.Tensor],
    _down: torch.Tensor,
    _weights: torch.Tensor,
    _ids: torch.Tensor,
    _gate_up_kinds: list[int],
    _down_kind: int,
    _activation: str,
) -> torch.Tensor:
    return torch.empty_like(x)


def register_operations() -> None:
    """Make `torch.ops.vllm.glm5_gguf_{linear,embedding,experts}`; a second call does nothing."""
    from vllm.utils.torch_utils import direct_register_custom_op

    from glm5_kernel.gguf.experts import apply_experts

    made: Any = torch.ops.vllm
    if hasattr(made, "glm5_gguf_linear"):
        return
    direct_register_custom_op("glm5_gguf_linear", _linear, fake_impl=_linear_fake)
    direct_register_custom_op("glm5_gguf_embedding", _embedding, fake_impl=_embedding_fake)
    direct_register_custom_op("glm5_gguf_experts", apply_experts, fake_impl=_experts_fake)
