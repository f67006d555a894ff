"""The kernel of the exact top-k selection from rows that fit in a program's registers.

Names are those of `topk_parts`.
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, N806, ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found, misc"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from glm5_kernel.ops.topk_parts import (
    end_of,
    first_column,
    identity,
    range_length,
    select,
    select_row,
)

ARGUMENTS = ["n_columns", "next_n", "k", "s_row", "s_out", "s_end", "s_end_next"]


@triton.jit(do_not_specialize=ARGUMENTS, do_not_specialize_on_alignment=["p_start", "p_end"])
def short_topk_kernel(
    p_logits, p_start, p_end, p_out,
    n_columns, next_n, k, s_row, s_out, s_end, s_end_next,
    KB: tl.constexpr,
    ROOM: tl.constexpr,
    WARPS: tl.constexpr,
    USE_START: tl.constexpr,
    LAST_ONLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Top-k of rows of at most ROOM columns, a program each.

    A row takes registers for FEWEST values, or two or four times that, by its own length and not by
    the columns: a captured CUDA graph has columns for the longest context. What does not depend on
    memory comes before `gdc_wait`, while the kernel before may still run.
    """
    # Fewer registers would not be quicker.
    FEWEST: tl.constexpr = min(ROOM, 4096)
    i_row = tl.program_id(0)
    o_n = tl.arange(0, FEWEST)
    p_row = p_logits + i_row.to(tl.int64) * s_row
    p_to = p_out + i_row.to(tl.int64) * s_out
    o_end, n_less = end_of(i_row, next_n, s_end, s_end_next, LAST_ONLY)
    if PDL:
        gdc_wait()
        # What follows may take its place meanwhile; it waits for this kernel's end itself.
        gdc_launch_dependents()
    start = first_column(p_start, i_row, n_columns, USE_START)
    # Loaded before the row's end is known: waiting for one access to memory after the other is most
    # of a short row's time.
    n_ahead = n_columns if ROOM == FEWEST else 0
    b_ahead = tl.load(p_row + start + o_n, mask=start + o_n < n_ahead, other=0.0)
    n = range_length(p_end, o_end, n_less, start, n_columns)
    if n <= k:
        identity(p_to, n, k, KB)
    elif n <= FEWEST:
        if ROOM > FEWEST:
            b_ahead = tl.load(p_row + start + o_n, mask=o_n < n, other=0.0)
        select(b_ahead, o_n, p_to, n, k, FEWEST, WARPS)
    elif n <= 2 * FEWEST:
        if ROOM >= 2 * FEWEST:
            select_row(p_row + start, p_to, n, k, 2 * FEWEST, WARPS)
    elif ROOM >= 4 * FEWEST:
        select_row(p_row + start, p_to, n, k, 4 * FEWEST, WARPS)


def signature() -> dict[str, str]:
    """Triton types of `short_topk_kernel`'s arguments for compiling it ahead of time."""
    pointers = {"p_logits": "*fp32"} | dict.fromkeys(("p_start", "p_end", "p_out"), "*i32")
    return pointers | dict.fromkeys(ARGUMENTS, "i32")
