"""Random calls of `sparse_mla`, and the comparison with the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from glm5_kernel.ops.layouts import Fp8Layout, assemble_fp8
from glm5_kernel.ops.reference import sparse_mla_reference
from glm5_kernel.ops.sparse_mla import sparse_mla
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
POISON = 7.0


@dataclass(frozen=True)
class Shape:
    """What a random call looks like.

    Attributes:
        block_gap: rows between the blocks of the pool, which then is no contiguous tensor.
        local: request-local positions with a block table, instead of physical slots.
        masked: part of the indices that is −1.
    """

    tokens: int = 3
    heads: int = 8
    topk: int = 70
    dtype: torch.dtype = torch.bfloat16
    fp8: bool = False
    latent_dim: int = 512
    rope_dim: int = 64
    row_bytes: int | None = None
    blocks: int = 12
    block_size: int = 16
    block_gap: int = 0
    local: bool = False
    lengths: bool = False
    masked: float = 0.2


@dataclass
class Call:
    """Arguments of `sparse_mla`."""

    shape: Shape
    q: Tensor
    kv_cache: Tensor
    indices: Tensor
    sm_scale: float
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, **more: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        return sparse_mla(
            self.q, self.kv_cache, self.indices, self.sm_scale, **self.options, **more
        )

    def reference(self) -> tuple[Tensor, Tensor]:
        return sparse_mla_reference(
            self.q, self.kv_cache, self.indices, self.sm_scale, **self.options
        )

    def check(self, **more: Any) -> None:  # noqa: ANN401
        """Run into poisoned outputs and compare with the reference."""
        tokens, heads, _ = self.q.shape
        out = self.q.new_full((tokens, heads, self.shape.latent_dim), POISON)
        lse = torch.full((tokens, heads), POISON, device=DEVICE)
        assert_close(self.run(out=out, lse=lse, **more), self.reference(), self.shape.dtype)


def random_call(shape: Shape) -> Call:
    """Fresh random inputs; slots that no index names hold NaN."""
    kv_cache = random_pool(shape)
    indices, options = random_indices(shape)
    dims = {"latent_dim": shape.latent_dim, "rope_dim": shape.rope_dim}
    width = shape.latent_dim + shape.rope_dim
    q = torch.randn(shape.tokens, shape.heads, width, device=DEVICE).to(shape.dtype)
    call = Call(shape, q, kv_cache, indices, width**-0.5, options | dims)
    spoil_unused(call)
    return call


def random_pool(shape: Shape) -> Tensor:
    """[blocks, block size, row], a view into something larger if there is a gap."""
    rows = (shape.blocks, shape.block_size + shape.block_gap)
    rope = torch.randn(*rows, shape.rope_dim, device=DEVICE)
    if shape.fp8:
        layout = Fp8Layout(shape.latent_dim, shape.rope_dim)
        values = (torch.randn(*rows, shape.latent_dim, device=DEVICE) * 60).clamp(-448, 448)
        # Any float32, from a group to the next a thousand times larger or smaller.
        scales = 10 ** (torch.rand(*rows, layout.groups, device=DEVICE) * 3 - 4)
        pool = assemble_fp8(values.to(torch.float8_e4m3fn), scales, rope, layout, shape.row_bytes)
    else:
        latent = torch.randn(*rows, shape.latent_dim, device=DEVICE)
        pool = torch.cat([latent, rope], dim=-1).to(shape.dtype)
    return pool[:, : shape.block_size]


def random_indices(shape: Shape) -> tuple[Tensor, dict[str, Any]]:
    """[T, K] with −1 anywhere, and what goes with it."""
    options: dict[str, Any] = {}
    slots = shape.blocks * shape.block_size
    size = (shape.tokens, shape.topk)
    if shape.local:
        requests, pages = 3, max(1, shape.blocks // 3)
        table = torch.randperm(shape.blocks, device=DEVICE)[: requests * pages]
        options["block_table"] = table.view(requests, pages).int()
        options["request_ids"] = random_int(0, requests, (shape.tokens,))
        slots = pages * shape.block_size
    indices = random_int(0, slots, size)
    indices[torch.rand(size, device=DEVICE) < shape.masked] = -1
    if shape.lengths:
        options["lengths"] = random_int(0, shape.topk + 1, (shape.tokens,))
    return indices, options


def random_int(low: int, high: int, size: tuple[int, ...]) -> Tensor:
    return torch.randint(low, high, size, device=DEVICE, dtype=torch.int32)


def spoil_unused(call: Call) -> None:
    """Every byte of a slot that no token attends to becomes 0xff: NaN in each of the dtypes."""
    kv_cache, indices = call.kv_cache, call.indices
    block_size = kv_cache.shape[1]
    used = torch.zeros(kv_cache.shape[:2], dtype=torch.bool, device=DEVICE)
    for t in range(indices.shape[0]):
        lengths = call.options.get("lengths")
        row = indices[t] if lengths is None else indices[t, : int(lengths[t])]
        row = row[row >= 0].long()
        blocks = row // block_size
        if "block_table" in call.options:
            pages = call.options["block_table"][int(call.options["request_ids"][t])]
            blocks = pages[blocks].long()
        used[blocks, row % block_size] = True
    # A view of bytes needs a contiguous row only, which any pool has.
    filler = torch.full_like(kv_cache, 255 if call.shape.fp8 else torch.nan)
    kv_cache.copy_(torch.where(used.unsqueeze(-1), kv_cache, filler))


def assert_close(
    got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], dtype: torch.dtype
) -> None:
    """Relative error of the output row by row of tokens; lse to 1e-3; −inf exactly."""
    (out, lse), (wanted_out, wanted_lse) = got, wanted
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    empty = torch.isinf(wanted_lse)
    assert torch.equal(torch.isneginf(lse), empty)
    assert bool((out[empty] == 0).all())
    error = (out.double() - wanted_out).norm() / wanted_out.norm().clamp_min(1e-30)
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"
    assert torch.allclose(lse.double()[~empty], wanted_lse[~empty], atol=1e-3, rtol=1e-3)
