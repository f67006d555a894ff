"""What both top-k kernels are made of: values, their keys, and the selection in registers.

In registers the k largest are found by sorting values into bins of equal width, so that few lie in
the bin of the k-th; up to 32 are compared with each other. Where more do, a radix selection on
integer keys follows.

Names: `i_` a program or loop index, `p_` a pointer, `b_` a block in registers, `o_` offsets, `m_` a
mask, `n_` a number of things, `s_` a stride in elements. Keys are int32 in the order of the values.
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, N806, ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found, misc"

from __future__ import annotations

import triton
import triton.language as tl

from glm5_kernel.ops.portable import IN_INTERPRETER
from glm5_kernel.ops.topk_ptx import largest_code, operands

ABSENT = tl.constexpr(-(2**31))
"""Key of what is no value; those of values lie between LEAST and MOST, both included."""
LEAST = tl.constexpr(-(2**31) + 1)
MOST = tl.constexpr(2**31 - 2)
NOTHING = tl.constexpr(2**32 - 1)
"""Bits of what is no value, where values are passed on as their bits."""


@triton.jit
def _first_of(m_tie, b_index, n, need):
    """The index below which lie `need` of those in `m_tie`."""
    low = n * 0
    high = n
    while low < high:
        middle = (low + high) // 2
        enough = tl.sum((m_tie & (b_index < middle)).to(tl.int32), 0) >= need
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return low


@triton.jit
def value_bits(value, m_value):
    """A value's bits; all ones where there is none. A NaN of all ones gets the next lower bits."""
    bits = tl.minimum(value.to(tl.uint32, bitcast=True), NOTHING - 1)
    return tl.where(m_value, bits, NOTHING).to(tl.int32, bitcast=True)


@triton.jit
def largest(b_bits, b_index, k, slack, n, NUMBERED: tl.constexpr, WARPS: tl.constexpr):
    """For each of the k largest of n values a number of its own, from 0 on; -1 for the others.

    Without NUMBERED any number that is not negative, the same for several or not. Of equal values
    those with the smallest indices are taken. Where that is quicker, up to `slack` more than k are
    taken, the next largest.
    """
    if IN_INTERPRETER:
        b_key = tl.where(b_bits == -1, ABSENT, key_of(b_bits.to(tl.float32, bitcast=True)))
        low = k * 0 + ABSENT
        step = k * 0 + 2**30
        if tl.sum((b_key >= 0).to(tl.int32), 0) >= k:
            low = k * 0
        while step > 0:
            enough = tl.sum((b_key >= low + step).to(tl.int32), 0) >= k
            low = tl.where(enough, low + step, low)
            step = step // 2
        m_tie = b_key == low
        need = k - tl.sum((b_key > low).to(tl.int32), 0)
        end = _first_of(m_tie, b_index, tl.max(b_index, 0) + 1, need)
        m_taken = (b_key > low) | (m_tie & (b_index < end))
        return tl.where(m_taken, tl.cumsum(m_taken.to(tl.int32), 0) - 1, -1)
    SIZE: tl.constexpr = b_bits.shape[0]
    N: tl.constexpr = SIZE // (32 * WARPS)
    code: tl.constexpr = largest_code(N, WARPS, NUMBERED)
    kinds: tl.constexpr = operands(N, "rrrrr")
    b_k = tl.broadcast_to(k, (SIZE,))
    b_slack = tl.broadcast_to(slack, (SIZE,))
    b_n = tl.broadcast_to(n, (SIZE,))
    given = [b_bits, b_index, b_k, b_slack, b_n]
    return tl.inline_asm_elementwise(code, kinds, given, tl.int32, False, N)


@triton.jit
def flip(bits):
    """Between the bits of float32 and int32 in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_of(value):
    """Keys in the order of the values; both zeros have the same, NaN the largest."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(value != value, MOST, flip(bits))


@triton.jit
def least_value(key):
    """The value of a key: no value with that key or a larger one is less. NaN for NaN's key."""
    return flip(key).to(tl.float32, bitcast=True)


@triton.jit
def identity(p_out, n, k, KB: tl.constexpr):
    """Write all n <= k positions in order, then -1."""
    o_k = tl.arange(0, KB)
    tl.store(p_out + o_k, tl.where(o_k < n, o_k, -1), mask=o_k < k)


@triton.jit
def end_of(i_row, next_n, s_end, s_end_next, LAST_ONLY: tl.constexpr):
    """Where the column after a row's range is written, and how much of that is to be taken away."""
    i_b = i_row
    i_n = i_row * 0
    if next_n > 1:  # a division takes as long as a memory access
        i_b = i_row // next_n
        i_n = i_row % next_n
    if LAST_ONLY:
        return i_b * s_end, next_n - 1 - i_n
    return i_b * s_end + i_n * s_end_next, i_n * 0


@triton.jit
def first_column(p_start, i_row, n_columns, USE_START: tl.constexpr):
    """Of a row's range, inside the matrix whatever is given."""
    start = n_columns * 0
    if USE_START:
        start = tl.minimum(tl.maximum(tl.load(p_start + i_row), 0), n_columns)
    return start


@triton.jit
def range_length(p_end, o_end, n_less, start, n_columns):
    """Columns of a row's range, inside the matrix whatever is given; for `o_end`, see `end_of`."""
    end = tl.minimum(tl.maximum(tl.load(p_end + o_end), 0) - n_less, n_columns)
    return tl.maximum(end, start) - start


@triton.jit
def select(b_value, b_index, p_out, n, k, ROOM: tl.constexpr, WARPS: tl.constexpr):
    """Write the indices of the k largest of n values, k <= n <= ROOM, that are held in registers.

    Of equal values those with the smallest indices are written.
    """
    b_bits = value_bits(b_value, tl.arange(0, ROOM) < n)
    b_place = largest(b_bits, b_index, k, k * 0, n, True, WARPS)
    tl.store(p_out + b_place, b_index, mask=b_place >= 0)


@triton.jit
def select_row(p_row, p_out, n, k, ROOM: tl.constexpr, WARPS: tl.constexpr):
    """Write the positions of the k largest of a row's n values, k <= n <= ROOM."""
    o_n = tl.arange(0, ROOM)
    b_value = tl.load(p_row + o_n, mask=o_n < n, other=0.0)
    select(b_value, o_n, p_out, n, k, ROOM, WARPS)
