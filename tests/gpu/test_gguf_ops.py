"""Quantised products on a CUDA device, by vllm-gguf-plugin's kernels, against decoded weights.

Blocks are random bytes with scales that make values of ordinary size, so that no quantiser is
needed. The kernels quantise activations to 8 bits: bounds are of that.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("vllm_gguf_plugin")

from glm5_kernel.gguf import compute
from glm5_kernel.gguf.decoding import decode_rows
from glm5_kernel.gguf.experts import apply_experts
from glm5_kernel.gguf.types import BY_NAME

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ2_XXS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Where a block has its halves: the scale, and the minimum where there is one."""


def random_weight(name: str, *shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 [..., bytes] and its values in float32, both on the GPU."""
    kind, random = BY_NAME[name], np.random.default_rng(seed)
    *rows, columns = shape
    count = int(np.prod(rows)) * columns // kind.block
    blocks = random.integers(0, 256, (count, kind.size), dtype=np.uint8)
    for place in SCALES[name]:
        halves = random.uniform(0.5, 1.0, count).astype(np.float16)
        blocks[:, place : place + 2] = halves[:, None].view(np.uint8).reshape(count, 2)
    rough = float(np.abs(decode_rows(blocks[:64], kind)).std()) or 1.0
    for place in SCALES[name]:
        halves = (random.uniform(0.5, 1.0, count) * 0.05 / rough).astype(np.float16)
        blocks[:, place : place + 2] = halves[:, None].view(np.uint8).reshape(count, 2)
    data = blocks.reshape(*rows, columns // kind.block * kind.size)
    values = decode_rows(data, kind).reshape(shape)
    return torch.from_numpy(data).cuda(), torch.from_numpy(values).cuda()


def close(found: torch.Tensor, right: torch.Tensor, bound: float = 0.03) -> None:
    """The error, root mean square, is a small part of the values'."""
    error = (found.float() - right).square().mean().sqrt() / right.square().mean().sqrt()
    assert float(error) < bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 5, 17, 300])
@pytest.mark.parametrize("name", SCALES)
def test_linear(name: str, tokens: int, dtype: torch.dtype) -> None:
    weight, values = random_weight(name, 384, 512)
    x = torch.randn(tokens, 512, device="cuda", dtype=dtype)
    found = compute._linear(x, weight, BY_NAME[name].number)
    assert found.dtype == dtype
    close(found, x.float() @ values.T)


@pytest.mark.parametrize("name", SCALES)
def test_embedding(name: str) -> None:
    weight, values = random_weight(name, 320, 512)
    ids = torch.randint(0, 320, (3, 7), device="cuda")
    found = compute._embedding(ids, weight, BY_NAME[name].number, torch.bfloat16)
    assert found.shape == (3, 7, 512)
    close(found, values[ids], 0.01)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Q8_0", "Q8_0", "Q8_0"), ("Q4_K", "Q4_K", "Q6_K"), ("Q4_K", "Q6_K", "Q5_K"),
        ("IQ3_XXS", "IQ3_XXS", "Q4_K"), ("IQ3_XXS", "IQ3_XXS", "IQ4_XS"),
        ("Q8_0", "IQ4_NL", "Q4_0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tokens", [1, 3, 64, 65, 200])
def test_experts(kinds: tuple[str, str, str], tokens: int) -> None:
    """Every mix of families, below and above the number of tokens where kernels change."""
    hidden, width, experts, chosen = 512, 256, 8, 3
    gate, gate_values = random_weight(kinds[0], experts, width, hidden, seed=1)
    up, up_values = random_weight(kinds[1], experts, width, hidden, seed=2)
    down, down_values = random_weight(kinds[2], experts, hidden, width, seed=3)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    scores = torch.rand(tokens, experts, device="cuda")
    weights, ids = scores.topk(chosen, -1)
    same = kinds[0] == kinds[1]
    found = apply_experts(
        x,
        [torch.cat([gate, up], 1)] if same else [gate, up],
        down,
        weights,
        ids.to(torch.int32),
        [BY_NAME[kinds[0]].number] if same else [BY_NAME[kind].number for kind in kinds[:2]],
        BY_NAME[kinds[2]].number,
        "silu",
    )
    between = torch.nn.functional.silu(torch.einsum("th,tkwh->tkw", x.float(), gate_values[ids]))
    between *= torch.einsum("th,tkwh->tkw", x.float(), up_values[ids])
    out = torch.einsum("tkw,tkhw->tkh", between, down_values[ids])
    close(found, (out * weights.unsqueeze(-1)).sum(1), 0.05)
