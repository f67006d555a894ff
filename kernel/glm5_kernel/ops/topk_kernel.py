"""The kernel of the exact top-k selection from rows of any length.

A row of at most `HELD` values is held in registers. Of a longer one a sample is looked at first:
its quantile gives a threshold that a little more than k values reach, so one pass over the row
leaves a list of few candidates, at most `ROOM`, which then are held in registers. The sample
decides speed alone: where it misleads (fewer than k candidates, or more than there is room for),
histograms of the list, or of the row, narrow the threshold down until it fits.

Where several programs share a row, all add to the row's list, and the one that is done last selects
from it.

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from glm5_kernel.ops.portable import IN_INTERPRETER
from glm5_kernel.ops.topk_parts import (
    ABSENT,
    LEAST,
    MOST,
    end_of,
    first_column,
    identity,
    key_of,
    largest,
    least_value,
    range_length,
    select,
    select_row,
    value_bits,
)
from glm5_kernel.ops.topk_ptx import (
    claim_code,
    count_code,
    counter_code,
    operands,
    tally_code,
)

MOST_BINS = tl.constexpr(1024)
"""Of a histogram: all of a kernel, those of `topk_ptx` among them, and what Triton needs must stay
below 48 KB together."""


@triton.constexpr_function
def _log2(n):
    return n.bit_length() - 1


@triton.jit
def _tally(b_bin, BINS: tl.constexpr, WARPS: tl.constexpr):
    """How many of `b_bin` are 0, 1, … BINS − 1, and zeros: as many numbers as there are values."""
    SIZE: tl.constexpr = b_bin.shape[0]
    o_bin = tl.arange(0, SIZE)
    if IN_INTERPRETER:
        m_bin = (b_bin >= 0) & (b_bin < BINS)
        b_counts = tl.histogram(tl.where(m_bin, b_bin, SIZE), 2 * SIZE)
        return tl.sum(tl.reshape(b_counts, (2, SIZE)) * (1 - tl.arange(0, 2))[:, None], 0)
    N: tl.constexpr = SIZE // (32 * WARPS)
    code: tl.constexpr = tally_code(N, BINS)
    kinds: tl.constexpr = operands(N, "rr")
    o_read = o_bin & (BINS - 1)
    b_counts = tl.inline_asm_elementwise(code, kinds, [b_bin, o_read], tl.int32, False, N)
    return tl.where(o_bin < BINS, b_counts, 0)


@triton.jit
def _counter(p_counter):
    """What counts the candidates of a program that has lists of its own: in shared memory, which
    answers sooner than p_counter. The interpreter has none."""
    if IN_INTERPRETER:
        return p_counter
    code: tl.constexpr = counter_code()
    return tl.inline_asm_elementwise(code, "=r,l", [p_counter.to(tl.int64)], tl.int32, False, 1)


@triton.jit
def _count(counter, SPLIT: tl.constexpr):
    """How many were claimed of a counter, which begins at 0 again."""
    if SPLIT or IN_INTERPRETER:
        return tl.atomic_xchg(counter, 0, sem="relaxed")
    code: tl.constexpr = count_code()
    # What it came to is read before its address is looked at for the last time.
    return tl.inline_asm_elementwise(code, "=&r,r", [counter], tl.int32, False, 1)


@triton.jit
def _claim(counter, m_hit, SPLIT: tl.constexpr, WARPS: tl.constexpr):
    """A number for each hit that no other has: the counter goes up by the number of hits."""
    SIZE: tl.constexpr = m_hit.shape[0]
    b_hit = m_hit.to(tl.int32)
    if IN_INTERPRETER:
        return tl.atomic_add(counter, tl.sum(b_hit, 0)) + tl.cumsum(b_hit, 0) - 1
    N: tl.constexpr = SIZE // (32 * WARPS)
    code: tl.constexpr = claim_code(N, "global" if SPLIT else "shared")
    kinds: tl.constexpr = operands(N, "rl" if SPLIT else "rr")
    address = counter
    if SPLIT:
        address = counter.to(tl.int64)
    given = [b_hit, tl.broadcast_to(address, (SIZE,))]
    return tl.inline_asm_elementwise(code, kinds, given, tl.int32, False, N)


@triton.jit
def _keys(p_from, o_n, n):
    m_n = o_n < n
    # Not from the first-level cache: other multiprocessors may have written this.
    b_value = tl.load(p_from + o_n, mask=m_n, other=0.0, cache_modifier=".cg")
    return tl.where(m_n, key_of(b_value), ABSENT)


@triton.jit
def _bins(b_key, high, width, BINS: tl.constexpr):
    """The bin of each key in [high - width, high], the largest first; BINS for others.

    Returns also by how many bits the distance from `high` is shifted for that.
    """
    # How many bits the width has, by its exponent as float32; rounding may give one too many.
    bits = (width.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    shift = tl.maximum(bits - _log2(BINS), 0).to(tl.uint32)
    b_far = (high - b_key).to(tl.uint32, bitcast=True)
    return tl.where(b_far <= width, (b_far >> shift).to(tl.int32), BINS), shift


@triton.jit
def _choose(b_tally, k, high, width, n_over, shift):
    """The bin where the k-th largest is, as an interval like those of `_narrow_down`."""
    SIZE: tl.constexpr = b_tally.shape[0]
    o_bin = tl.arange(0, SIZE)
    b_reach = n_over + tl.cumsum(b_tally, 0)
    m_over = b_reach < k
    b_packed = ((o_bin + 1).to(tl.int64) << 32) | b_reach.to(tl.int64)
    last = tl.max(tl.where(m_over, b_packed, n_over.to(tl.int64)), 0)
    n_reach = tl.min(tl.where(m_over, MOST, b_reach), 0)
    start = (last >> 32).to(tl.uint32) << shift
    size = ((width * 0 + 1) << shift) - 1
    width = tl.minimum(width - start, size)
    return high - start.to(tl.int32, bitcast=True), width, last.to(tl.int32), n_reach


@triton.jit
def _write(p_out, b_key, b_index, high, width, before, ties, need):
    """Write those above the interval, and as many in it (ties) as `need` allows.

    `before` are written, and `ties` seen, already. Returns both numbers afterwards.
    """
    m_over = b_key > high
    m_tie = (high - b_key).to(tl.uint32, bitcast=True) <= width
    b_rank = tl.cumsum(m_over.to(tl.int32) | (m_tie.to(tl.int32) << 16), 0)
    b_ties = ties + (b_rank >> 16)
    b_place = (b_rank & 0xFFFF) + tl.minimum(b_ties, need) - tl.minimum(ties, need) - 1
    m_taken = m_over | (m_tie & (b_ties <= need))
    tl.store(p_out + before + b_place, b_index, mask=m_taken)
    n_taken = tl.sum(m_taken.to(tl.int32), 0)
    return before + n_taken, ties + tl.sum(m_tie.to(tl.int32), 0)


@triton.jit
def _select(p_from, p_index, p_out, n, k, listed,
            ROOM: tl.constexpr, WARPS: tl.constexpr):  # fmt: skip
    """Write the k largest of n values, k <= n <= ROOM; of equal ones those that come first.

    A row's indices are its positions, those of a list (`listed`) at `p_index`.
    """
    o_n = tl.arange(0, ROOM)
    m_n = o_n < n
    b_value = tl.load(p_from + o_n, mask=m_n, other=0.0, cache_modifier=".cg")
    b_index = tl.load(p_index + o_n, mask=m_n & listed, other=0, cache_modifier=".cg")
    select(b_value, tl.where(listed, b_index, o_n), p_out, n, k, ROOM, WARPS)


@triton.jit
def threshold_rank(n, k, SAMPLE: tl.constexpr, ROOM: tl.constexpr):
    """Which of the largest of the sample is the threshold.

    `mean` of the sample are among the k largest, on average; the larger the rank, the more values
    are candidates. Where they are fewer than k, a program counts the whole row; where there is no
    room for them, only the list. So the rank lies in the middle of both, in standard deviations,
    but 3.5 of them above the mean at least. At 4.75 and k = 2048 less than a row in a million has
    too few; with a smaller k, whose numbers are further from normal, up to 14.
    """
    mean = k * (SAMPLE * 1.0) / n
    both = 1 + tl.sqrt(ROOM * 1.0 / k)
    deviation = tl.sqrt(mean)
    rank = tl.maximum(mean * both * both / 4, mean + 3.5 * deviation + 3.0)
    rank = tl.minimum(rank, mean + 4.75 * deviation + 3.0)
    return tl.minimum(rank.to(tl.int32), SAMPLE)


@triton.jit
def _threshold(p_row, n, k, SAMPLE: tl.constexpr, ROOM: tl.constexpr, WARPS: tl.constexpr):
    """A value that probably a little more than k of the row's n > SAMPLE values reach.

    The sample has one value, anywhere, of each of SAMPLE equal stretches of the row.
    """
    # n >> 31 is zero. Without it this would not depend on the row, and the compiler would keep it
    # in registers from row to row.
    o_s = tl.arange(0, SAMPLE) + (n >> 31)
    each = n // SAMPLE
    rest = n % SAMPLE
    o_start = o_s * each + (o_s * rest) // SAMPLE
    b_width = (o_s + 1) * each + ((o_s + 1) * rest) // SAMPLE - o_start
    # Where in its stretch: 16 bits of a hash times the width, which is cut to 16 bits, over 2^16.
    b_hash = (o_s.to(tl.uint32) * 2654435761) >> 16
    b_step = (b_hash * tl.minimum(b_width, 65_535).to(tl.uint32)) >> 16
    b_value = tl.load(p_row + o_start + b_step.to(tl.int32))
    rank = threshold_rank(n, k, SAMPLE, ROOM)
    b_bits = value_bits(b_value, o_s >= 0)
    b_taken = largest(b_bits, o_s, rank, rank // 16, rank * 0 + SAMPLE, False, WARPS)
    return least_value(tl.min(tl.where(b_taken >= 0, key_of(b_value), MOST), 0))


@triton.jit
def _tile(p_from, start, n, TILE: tl.constexpr):
    o_t = start + tl.arange(0, TILE)
    return tl.load(p_from + o_t, mask=o_t < n, other=0.0)


@triton.jit
def _collect(b_next, p_from, p_from_index, counter, p_value, p_index, first, n, step, threshold,
             room, listed, SPLIT: tl.constexpr, TILE: tl.constexpr,
             WARPS: tl.constexpr):  # fmt: skip
    """Put the values that are not less than the threshold on the list, as long as there is room.

    Looks at tiles `first`, `first + step`, … of n values, the first of which is in `b_next`. The
    counter goes up by as many as are not less.
    """
    o_t = tl.arange(0, TILE)
    for t in range(first * TILE, n, step * TILE):
        b_value = b_next
        b_next = _tile(p_from, t + step * TILE, n, TILE)
        m_hit = ~(b_value < threshold) & (t + o_t < n)
        b_place = _claim(counter, m_hit, SPLIT, WARPS)
        m_kept = m_hit & (b_place < room)
        b_index = tl.load(p_from_index + t + o_t, mask=m_kept & listed, other=0)
        tl.store(p_value + b_place, b_value, mask=m_kept)
        tl.store(p_index + b_place, tl.where(listed, b_index, t + o_t), mask=m_kept)


@triton.jit
def _narrow_down(p_from, n, k, room, TILE: tl.constexpr, WARPS: tl.constexpr):
    """An interval [high - width, high] of keys that holds the k-th largest of n values in memory.

    `n_over` keys are larger, `n_reach` at least as large as its least; `n_reach` is at most `room`,
    or the interval is a single key.
    """
    BINS: tl.constexpr = min(TILE, MOST_BINS)
    o_t = tl.arange(0, TILE)
    b_least = tl.full([TILE], MOST, tl.int32)
    b_most = tl.full([TILE], LEAST, tl.int32)
    for t in range(0, n, TILE):
        b_key = _keys(p_from, t + o_t, n)
        b_least = tl.minimum(b_least, tl.where(b_key == ABSENT, MOST, b_key))
        b_most = tl.maximum(b_most, b_key)
    high = tl.max(b_most, 0)
    width = (high - tl.min(b_least, 0)).to(tl.uint32, bitcast=True)
    n_over = n * 0
    n_reach = n
    while (n_reach > room) & (width > 0):
        b_tally = tl.zeros([TILE], tl.int32)
        shift = width * 0
        for t in range(0, n, TILE):
            b_bin, shift = _bins(_keys(p_from, t + o_t, n), high, width, BINS)
            b_tally += _tally(b_bin, BINS, WARPS)
        high, width, n_over, n_reach = _choose(b_tally, k, high, width, n_over, shift)
    return high, width, n_over, n_reach


@triton.jit
def _better_list(p_row, counter, p_value, p_index, p_out, n, k, count,
                 ROOM: tl.constexpr, LIST: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
                 WARPS: tl.constexpr):  # fmt: skip
    """Where a list of `count` values does not serve: make one at its end that does.

    It is made from the list, or, if that lacks some, from the row. Returns its length; 0 if so many
    values tie that the selection had to be written at once.
    """
    listed = (count >= k) & (count <= LIST)
    p_from = p_row
    n_from = n
    if listed:
        p_from = p_value
        n_from = count
    high, width, n_over, n_reach = _narrow_down(p_from, n_from, k, ROOM, TILE, WARPS)
    if n_reach <= ROOM:
        least = least_value(high - width.to(tl.int32, bitcast=True))
        b_first = _tile(p_from, n * 0, n_from, TILE)
        _collect(b_first, p_from, p_index, counter, p_value + LIST, p_index + LIST, n * 0,
                 n_from, n * 0 + 1, least, ROOM, listed, SPLIT, TILE, WARPS)  # fmt: skip
        tl.debug_barrier()
        n_reach = tl.minimum(_count(counter, SPLIT), ROOM)
    else:
        o_t = tl.arange(0, TILE)
        written = n * 0
        ties = n * 0
        for t in range(0, n, TILE):
            b_key = _keys(p_row, t + o_t, n)
            written, ties = _write(p_out, b_key, t + o_t, high, width, written, ties, k - n_over)
        n_reach = n * 0
    return n_reach


@triton.jit
def _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
            USE_START: tl.constexpr, LAST_ONLY: tl.constexpr):  # fmt: skip
    """First column and number of columns of a row."""
    start = first_column(p_start, i_row, n_columns, USE_START)
    o_end, n_less = end_of(i_row, next_n, s_end, s_end_next, LAST_ONLY)
    return start, range_length(p_end, o_end, n_less, start, n_columns)


@triton.jit
def _row(p_row, counter, p_done, p_value, p_index, p_out, n, k, i_part, n_parts,
         KB: tl.constexpr, SAMPLE: tl.constexpr, ROOM: tl.constexpr, HELD: tl.constexpr,
         LIST: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
         WARPS: tl.constexpr):  # fmt: skip
    """One program's part of a row of n values, as number `i_part` of `n_parts`.

    counter: of values on the list; in memory where programs share the row, else see `_counter`.
    p_done: where they do, of programs that are done. Both are 0 before and after.
    p_value, p_index: the list, of LIST values and of ROOM more.
    """
    p_from = p_row
    n_from = n
    listed = n > HELD
    if listed:
        n_active = tl.minimum(n_parts, tl.cdiv(n, TILE))
        n_from = n * 0
        if i_part < n_active:
            b_first = _tile(p_row, i_part * TILE, n, TILE)  # arrives while the sample is looked at
            threshold = _threshold(p_row, n, k, SAMPLE, ROOM, WARPS)
            _collect(b_first, p_row, p_index, counter, p_value, p_index, i_part, n, n_active,
                     threshold, LIST, False, SPLIT, TILE, WARPS)  # fmt: skip
            # All threads' values are on the list before this program counts as done.
            tl.debug_barrier()
            n_done = n_active - 1
            if SPLIT:
                n_done = tl.atomic_add(p_done, 1, sem="acq_rel")
            if n_done == n_active - 1:
                tl.debug_barrier()
                n_from = _count(counter, SPLIT)
                if SPLIT:
                    tl.store(p_done, 0)
                p_from = p_value
                if (n_from < k) | (n_from > ROOM):
                    n_from = _better_list(p_row, counter, p_value, p_index, p_out, n, k, n_from,
                                          ROOM, LIST, SPLIT, TILE, WARPS)  # fmt: skip
                    p_from = p_value + LIST
                    p_index = p_index + LIST
    elif i_part > 0:
        n_from = n * 0
    elif n <= k:
        identity(p_out, n, k, KB)
    elif n > ROOM:
        if HELD > ROOM:
            select_row(p_row, p_out, n, k, HELD, WARPS)
        n_from = n * 0
    if (n_from > k) | (listed & (n_from == k)):
        _select(p_from, p_index, p_out, n_from, k, listed, ROOM, WARPS)


ARGUMENTS = [
    "n_columns", "next_n", "k", "s_row", "s_out", "s_end", "s_end_next", "n_rows", "n_parts",
    "s_list",
]  # fmt: skip


@triton.jit(do_not_specialize=ARGUMENTS, do_not_specialize_on_alignment=["p_start", "p_end"])
def topk_kernel(
    p_logits, p_start, p_end, p_out, p_counter, p_value, p_index,
    n_columns, next_n, k, s_row, s_out, s_end, s_end_next, n_rows, n_parts, s_list,
    KB: tl.constexpr,
    SAMPLE: tl.constexpr,
    ROOM: tl.constexpr,
    HELD: tl.constexpr,
    LIST: tl.constexpr,
    TILE: tl.constexpr,
    WARPS: tl.constexpr,
    SPLIT: tl.constexpr,
    USE_START: tl.constexpr,
    LAST_ONLY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Top-k of rows.

    SPLIT: `n_parts` programs share a row, and rows have a list of candidates each. Otherwise each
    of `n_parts` programs does one row after the other and has a list of its own.

    Triton is told nothing about the alignment of rows and lists, not even what is known: it would
    spread wide loads over threads otherwise than scattered stores, pass every tile through shared
    memory in between, and repeat `_claim` to save itself that, which is not the same.
    """
    i = tl.program_id(0)
    if PDL:
        gdc_wait()
        # What follows may take its place meanwhile; it waits for this kernel's end itself.
        gdc_launch_dependents()
    if SPLIT:
        i_row = i % n_rows
        i_part = i // n_rows
        start, n = _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
                           USE_START, LAST_ONLY)  # fmt: skip
        o_list = i_row.to(tl.int64) * s_list
        p_row = p_logits + i_row.to(tl.int64) * s_row + start
        p_to = p_out + i_row.to(tl.int64) * s_out
        p_listed = p_counter + 2 * i_row
        _row(p_row, p_listed, p_listed + 1, p_value + o_list, p_index + o_list,
             p_to, n, k, i_part, n_parts,
             KB, SAMPLE, ROOM, HELD, LIST, SPLIT, TILE, WARPS)  # fmt: skip
    else:
        o_list = i.to(tl.int64) * s_list
        counter = _counter(p_counter + 2 * i)
        for i_next in range(i, n_rows, n_parts):
            i_row = n_rows * 0 + i_next  # in the interpreter a loop's index is no tensor
            p_row = p_logits + i_row.to(tl.int64) * s_row
            start, n = _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
                               USE_START, LAST_ONLY)  # fmt: skip
            p_to = p_out + i_row.to(tl.int64) * s_out
            _row(p_row + start, counter, p_counter, p_value + o_list,
                 p_index + o_list, p_to, n, k, n_rows * 0, n_rows * 0 + 1,
                 KB, SAMPLE, ROOM, HELD, LIST, SPLIT, TILE, WARPS)  # fmt: skip
            tl.debug_barrier()


def signature() -> dict[str, str]:
    """Triton types of `topk_kernel`'s arguments for compiling it ahead of time."""
    integers = ("p_start", "p_end", "p_out", "p_counter", "p_index")
    floats = ("p_logits", "p_value")
    pointers = dict.fromkeys(floats, "*fp32") | dict.fromkeys(integers, "*i32")
    return pointers | dict.fromkeys(ARGUMENTS, "i32")
