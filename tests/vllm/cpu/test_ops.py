"""vllm-gguf-plugin's own layers on the CPU, with our operations in the place of its kernels."""

from __future__ import annotations

import sys

import gguf
import numpy as np
import pytest
import torch
from glm5_kernel.gguf.cpu import ops
from glm5_kernel.gguf.tiny.codec import encode
from glm5_kernel.gguf.types import BY_NAME
from torch import Tensor

from tests.vllm.cpu import engine

KINDS = ("Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "IQ3_XXS")


class Weight:
    """Random values as a file holds them, and as gguf-py decodes them."""

    def __init__(self, kind: str, *shape: int) -> None:
        values = np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)
        self.kind = BY_NAME[kind].number
        encoded = encode(values, BY_NAME[kind])
        decoded = gguf.quants.dequantize(encoded, gguf.GGMLQuantizationType(self.kind))
        self.data = torch.from_numpy(encoded)
        self.values = torch.from_numpy(np.asarray(decoded, dtype=np.float32)).view(shape)


def close(found: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-4)


def test_the_plugin_runs_without_triton_on_ours() -> None:
    import vllm_gguf_plugin
    from vllm_gguf_plugin.quantization import linear

    assert engine.REGISTRATION.part("gguf").state == "registered"
    assert "triton" not in sys.modules
    assert vllm_gguf_plugin.ops is linear.ops is ops


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_linear(kind: str, tokens: int) -> None:
    from vllm_gguf_plugin.quantization import fused_mul_mat_gguf

    weight, x = Weight(kind, 96, 256), torch.randn(tokens, 256)
    close(fused_mul_mat_gguf(x, weight.data, weight.kind), x @ weight.values.T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding(kind: str, dtype: torch.dtype) -> None:
    from vllm_gguf_plugin.quantization import apply_gguf_embedding

    weight, ids = Weight(kind, 50, 256), torch.tensor([[3, 49], [0, 3]])
    found = apply_gguf_embedding(ids, weight.data, weight.kind, 256, dtype)
    assert torch.equal(found, weight.values[ids].to(dtype))


def experts_reference(x: Tensor, up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Token by token, expert by expert."""
    out = torch.zeros_like(x)
    for token, (row, chosen) in enumerate(zip(weights, ids, strict=True)):
        for weight, expert in zip(row, chosen, strict=True):
            gate, other = (up[expert] @ x[token]).chunk(2)
            out[token] += weight * (down[expert] @ (torch.nn.functional.silu(gate) * other))
    return out


@pytest.mark.parametrize("kinds", [("Q4_K", "Q6_K"), ("Q8_0", "Q8_0"), ("IQ3_XXS", "IQ4_NL")])
@pytest.mark.parametrize("tokens", [1, 33])
def test_ours_for_experts(kinds: tuple[str, str], tokens: int) -> None:
    from glm5_kernel.gguf.experts import apply_experts

    up, down = Weight(kinds[0], 6, 512, 256), Weight(kinds[1], 6, 256, 256)
    x, weights = torch.randn(tokens, 256) / 16, torch.rand(tokens, 3)
    ids = torch.stack([torch.randperm(6)[:3] for _ in range(tokens)])
    found = apply_experts(x, [up.data], down.data, weights, ids, [up.kind], down.kind, "silu")
    close(found, experts_reference(x, up.values, down.values, weights, ids))


def sorted_by_expert(ids: Tensor, block: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slots sorted by expert, each expert's padded to whole blocks, as vLLM's kernel gives them."""
    flat, slots, owners = ids.flatten(), [], []
    for expert in range(experts):
        mine = (flat == expert).nonzero().flatten().tolist()
        mine += [flat.numel()] * (-len(mine) % block)
        slots += mine
        owners += [expert] * (len(mine) // block)
    spare = [flat.numel()] * 32
    counts = torch.tensor([len(slots)], dtype=torch.int32)
    return torch.tensor(slots + spare, dtype=torch.int32), torch.tensor([*owners, 0, 0]), counts


def test_both_forms_of_experts_agree() -> None:
    weight, x = Weight("Q4_K", 5, 32, 256), torch.randn(70, 256)
    ids = torch.stack([torch.randperm(5)[:2] for _ in range(70)])
    right = torch.einsum("toi,ti->to", weight.values[ids.flatten()], x.repeat_interleave(2, 0))
    close(ops.ggml_moe_a8_vec(x, weight.data, ids, 2, weight.kind, 32, 70), right)
    block = ops.ggml_moe_get_block_size(weight.kind)
    order = sorted_by_expert(ids, block, 5)
    close(ops.ggml_moe_a8(x, weight.data, *order, weight.kind, 32, 2, 70), right)


def test_dequantize_has_the_shape_and_dtype_that_are_asked_for() -> None:
    weight = Weight("Q6_K", 8, 256)
    found = ops.ggml_dequantize(weight.data, weight.kind, 8, 256, None)
    assert found.dtype == torch.float16
    assert torch.equal(found, weight.values.half())


def test_moe_sum() -> None:
    values, out = torch.randn(4, 3, 8), torch.empty(4, 8)
    ops.moe_sum(values, out)
    close(out, values.sum(1))
