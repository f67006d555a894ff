"""Triton helpers that mean the same on a GPU and in Triton's interpreter."""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl

from glm5_kernel.ops.checks import INTERPRET

IN_INTERPRETER = tl.constexpr(INTERPRET)
LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def dot(a, b, acc):
    """a @ b + acc in float32."""
    if IN_INTERPRETER:  # it multiplies the bit patterns of bf16
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(a, b, acc)


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """float32 `x` in DTYPE, rounded to nearest."""
    if IN_INTERPRETER and tl.bfloat16 == DTYPE:  # it truncates
        bits = x.to(tl.int32, bitcast=True)
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
        x = (bits & -65536).to(tl.float32, bitcast=True)
    return x.to(DTYPE)
