"""Merging partial attention results by their log-sum-exp.

Used for the splits of one call and, through `merge_partials`, for shards of the KV cache that
different ranks attended to (context parallelism).
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from glm5_kernel.ops.checks import (
    check_contiguous,
    check_device,
    check_dtype,
    check_same_device,
    check_shape,
    require,
)
from glm5_kernel.ops.launch import Launch
from glm5_kernel.ops.portable import LN2, LOG2E, narrow


@triton.jit(
    do_not_specialize=["n_heads", "n_units", "share", "s_row", "s_part", "s_lse_row", "s_lse_part"]
)
def merge_kernel(
    p_part,
    p_part_lse,
    p_out,
    p_lse,
    n_heads,
    n_units,
    share,
    s_row,
    s_part,
    s_lse_row,
    s_lse_part,
    D: tl.constexpr,
    BD: tl.constexpr,
    BP: tl.constexpr,
    PDL: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    i_d = tl.program_id(1)
    o_d = i_d * BD + tl.arange(0, BD)
    o_p = tl.arange(0, BP)
    if PDL:
        gdc_wait()

    # How many programs worked on this row.
    i_t = i_row // n_heads
    n_parts = ((i_t + 1) * n_units - 1) // share - i_t * n_units // share + 1
    # [BP]
    p_l = p_part_lse + i_row * s_lse_row + o_p.to(tl.int64) * s_lse_part
    b_lse = tl.load(p_l, mask=o_p < n_parts, other=float("-inf"))
    used = b_lse != float("-inf")
    # [BP, BD]
    off = tl.multiple_of(i_row * s_row + o_p.to(tl.int64) * s_part, 8)
    b_part = tl.load(p_part + off[:, None] + o_d[None, :], mask=used[:, None], other=0.0)

    # An empty row keeps a finite reference so that no -inf is subtracted from another.
    top = tl.max(b_lse, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.where(used, tl.exp2((b_lse - base) * LOG2E), 0.0)
    total = tl.sum(weight, 0)
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    b_out = tl.sum(b_part.to(tl.float32) * (weight / total)[:, None], 0)
    tl.store(p_out + i_row * D + o_d, narrow(b_out, p_out.dtype.element_ty))
    if i_d == 0:
        tl.store(p_lse + i_row, tl.where(empty, float("-inf"), base + tl.log2(total) * LN2))


def merge_launch(
    rows: int,
    dim: int,
    *,
    max_parts: int,
    strides: tuple[int, int, int, int],
    sharing: tuple[int, int, int],
    pdl: bool,
) -> Launch:
    """A launch that merges the partial results of every row.

    It takes: partial outputs, of which row r of part p starts at element `r * strides[0] + p *
    strides[1]`; their lses in float32, element `r * strides[2] + p * strides[3]`; out, [rows, dim]
    contiguous; lse, [rows] float32, contiguous.

    Args:
        rows: of `out`, tokens times heads.
        dim: of a row.
        max_parts: the most parts that a row has.
        strides: see above.
        sharing: heads, KV tiles per token and tiles per program (`configs.Plan`): token t
            (= row // heads) has as many parts as programs share its tiles.
        pdl: start while the kernel before this one still runs (capability 9.0 and newer).
    """
    padded = triton.next_power_of_2(max_parts)
    # Measured on an H200: two warps and 8192 values a program, in whole groups of 128.
    block = min(math.gcd(dim, 512), max(128, 8192 // padded))
    return Launch(
        merge_kernel, (rows, dim // block), (*sharing, *strides),
        {"D": dim, "BD": block, "BP": padded}, pdl=pdl, num_warps=2,
    )  # fmt: skip


def merge_partials(
    outs: Tensor,
    lses: Tensor,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Merge attention results over disjoint shards of the KV cache.

    A shard that saw no token of a row has an lse of −inf there and does not count, whatever its
    output holds.

    Args:
        outs: [N, T, H, D] bf16 or fp16, contiguous, D a multiple of 128.
        lses: [N, T, H] float32 (natural log), contiguous.
        out: optional result [T, H, D], same dtype.
        lse: optional result [T, H] float32.

    Returns:
        out and lse of the union.

    Raises:
        ValueError: a shape, dtype, device or layout does not fit.
    """
    require(outs.ndim == 4, "outs", f"{outs.ndim} dims", "4: [N, T, H, D]")
    n_parts, tokens, heads, dim = outs.shape
    require(dim > 0 and dim % 128 == 0, "outs", f"D = {dim}", "a positive multiple of 128")
    require(n_parts > 0, "outs", "no shard", "at least one")
    check_device("outs", outs)
    check_dtype("outs", outs, (torch.bfloat16, torch.float16))
    check_contiguous("outs", outs)
    check_shape("lses", lses, (n_parts, tokens, heads))
    check_dtype("lses", lses, (torch.float32,))
    check_contiguous("lses", lses)
    out = outs.new_empty(tokens, heads, dim) if out is None else out
    lse = lses.new_empty(tokens, heads) if lse is None else lse
    check_result("out", out, (tokens, heads, dim), outs.dtype, outs.device)
    check_result("lse", lse, (tokens, heads), torch.float32, outs.device)
    if tokens:
        rows = tokens * heads
        strides = (dim, rows * dim, 1, rows)
        merge = merge_launch(
            rows, dim, max_parts=n_parts, strides=strides, sharing=(1, n_parts, 1), pdl=False
        )
        merge(outs, lses, out, lse)
    return out, lse


def check_result(
    name: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Raise ValueError unless `value` can receive a result."""
    check_shape(name, value, shape)
    check_dtype(name, value, (dtype,))
    check_contiguous(name, value)
    check_same_device(name, value, device)
