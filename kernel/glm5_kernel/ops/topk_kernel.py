"""The kernel of the exact top-k selection.

A row of at most `WIDE` values is held in registers. Of a longer one a sample is looked at first: its
quantile gives a threshold that a little more than k values reach, so one pass over the row leaves a
few thousand candidates, which then are held in registers. The sample decides speed alone: where it
misleads (fewer than k candidates, or more than there is room for), the row itself is counted until
the threshold fits.

In registers the k-th largest value is found by counting how many values reach each of three pivots:
two by interpolation of what is counted so far, one in the middle of the interval of keys, which
bounds the number of rounds by 32 whatever the values are.

Where several programs share a row, each adds its candidates to the row's list, and the one that is
done last selects from it.

Names: `i_` a program or loop index, `p_` a pointer, `b_` a block in registers, `o_` offsets, `m_` a
mask, `n_` a number of things, `s_` a stride in elements. Keys are int32 in the order of the values.
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, N806, ANN001, ANN201, ANN202, SIM102
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from glm5_kernel.ops.portable import IN_INTERPRETER

ABSENT = tl.constexpr(-(2**31))
"""Key of what is no value; those of values lie between the next two, both included."""
LEAST = tl.constexpr(-(2**31) + 1)
MOST = tl.constexpr(2**31 - 2)


@triton.jit
def _flip(bits):
    """Between the bits of float32 and int32 in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _key(value):
    return tl.minimum(tl.maximum(_flip(value.to(tl.int32, bitcast=True)), LEAST), MOST)


@triton.jit
def _value(key):
    return _flip(key).to(tl.float32, bitcast=True)


@triton.jit
def _add_three(a_0, a_1, a_2, b_0, b_1, b_2):
    return a_0 + b_0, a_1 + b_1, a_2 + b_2


@triton.jit
def _sum_three(b_0, b_1, b_2):
    """Three sums for one pass through shared memory."""
    if IN_INTERPRETER:  # it would add number by number
        return tl.sum(b_0, 0), tl.sum(b_1, 0), tl.sum(b_2, 0)
    return tl.reduce((b_0, b_1, b_2), 0, _add_three)


@triton.jit
def _pivots(k, low, n_low, high, n_high):
    """Three keys in (low, high): by interpolation, half as far, and the middle."""
    part = (n_low - k + 0.5) / (n_low - n_high)
    at = _value(low)
    span = _value(high) - at
    # Whatever an infinity or NaN makes of this, the pivots lie inside.
    near = tl.minimum(tl.maximum(_key(at + span * (0.5 * part)), low + 1), high - 1)
    far = tl.minimum(tl.maximum(_key(at + span * part), low + 1), high - 1)
    return near, far, (low >> 1) + (high >> 1) + (low & high & 1)


@triton.jit
def _narrow(k, low, n_low, high, n_high, pivot, count):
    """The interval after `count` values were found to reach `pivot`."""
    up = (count >= k) & (pivot > low)
    down = (count < k) & (pivot < high)
    low = tl.where(up, pivot, low)
    n_low = tl.where(up, count, n_low)
    high = tl.where(down, pivot, high)
    n_high = tl.where(down, count, n_high)
    return low, n_low, high, n_high


@triton.jit
def _search(b_key, n, k, slack):
    """An interval [low, high) of keys that holds the k-th largest of n, and how many reach each end.

    Either between k and k + slack keys reach `low`, or `low` is the only key of the interval.
    """
    low = tl.min(tl.where(b_key == ABSENT, MOST, b_key), 0)
    high = tl.max(b_key, 0) + 1
    n_low = n
    n_high = n * 0
    while (n_low > k + slack) & (low + 1 < high):
        p_0, p_1, p_2 = _pivots(k, low, n_low, high, n_high)
        c_0, c_1, c_2 = _sum_three(
            (b_key >= p_0).to(tl.int32), (b_key >= p_1).to(tl.int32), (b_key >= p_2).to(tl.int32)
        )
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_0, c_0)
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_1, c_1)
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_2, c_2)
    return low, n_low, high, n_high


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
def _write(p_out, b_key, b_index, low, high, before, ties, need):
    """Write those that reach `high`, and as many ties in [low, high) as `need` allows.

    `before` are written, and `ties` seen, already. Returns both numbers afterwards.
    """
    m_over = b_key >= high
    m_tie = (b_key >= low) & ~m_over
    b_rank = tl.cumsum(m_over.to(tl.int32) | (m_tie.to(tl.int32) << 16), 0)
    b_ties = ties + (b_rank >> 16)
    b_place = (b_rank & 0xFFFF) + tl.minimum(b_ties, need) - tl.minimum(ties, need) - 1
    m_taken = m_over | (m_tie & (b_ties <= need))
    tl.store(p_out + before + b_place, b_index, mask=m_taken)
    n_taken = tl.sum(m_taken.to(tl.int32), 0)
    return before + n_taken, ties + tl.sum(m_tie.to(tl.int32), 0)


@triton.jit
def _select(p_out, b_key, b_index, n, k, IN_ORDER: tl.constexpr):
    """Write the indices of the k largest of n > k keys; of equal ones the first.

    IN_ORDER: whether the indices ascend.
    """
    low, n_low, high, n_high = _search(b_key, n, k, 0)
    need = k - n_high
    if not IN_ORDER:
        if n_low > k:
            m_tie = b_key == low
            end = _first_of(m_tie, b_index, tl.max(b_index, 0) + 1, need)
            b_key = tl.where(m_tie & (b_index >= end), ABSENT, b_key)
    _write(p_out, b_key, b_index, low, high, 0, 0, need)


@triton.jit
def _select_row(p_row, p_out, n, k, BLOCK: tl.constexpr):
    """The whole row of k < n <= BLOCK values in registers."""
    o_n = tl.arange(0, BLOCK)
    b_key = _keys(p_row, o_n, n)
    _select(p_out, b_key, o_n, n, k, True)


@triton.jit
def _select_candidates(p_key, p_index, p_out, n, k, BLOCK: tl.constexpr):
    """The list of k <= n <= BLOCK candidates in registers."""
    o_n = tl.arange(0, BLOCK)
    m_n = o_n < n
    # Past the first-level cache: other multiprocessors wrote this.
    b_key = tl.load(p_key + o_n, mask=m_n, other=ABSENT, cache_modifier=".cg")
    b_index = tl.load(p_index + o_n, mask=m_n, other=0, cache_modifier=".cg")
    _select(p_out, b_key, b_index, n, k, False)


@triton.jit
def _keys(p_row, o_n, n):
    m_n = o_n < n
    b_value = tl.load(p_row + o_n, mask=m_n, other=0.0)
    return tl.where(m_n, _key(b_value), ABSENT)


@triton.jit
def _threshold(p_row, n, k, SAMPLE: tl.constexpr):
    """A key that probably a little more than k of the row's n > SAMPLE values reach.

    The sample has one value, anywhere, of each of SAMPLE equal stretches of the row.
    """
    o_s = tl.arange(0, SAMPLE)
    o_start = (o_s.to(tl.int64) * n) // SAMPLE
    o_width = ((o_s + 1).to(tl.int64) * n) // SAMPLE - o_start
    o_hash = ((o_s.to(tl.uint32) * 2654435761) >> 16).to(tl.int64)
    b_key = _key(tl.load(p_row + o_start + ((o_hash * o_width) >> 16)))
    # Half of the time that many of the sample are among the k largest; plus 3.5 deviations.
    mean = k * (SAMPLE * 1.0) / n
    rank = tl.minimum((mean + 3.5 * tl.sqrt(mean) + 3.0).to(tl.int32), SAMPLE)
    low, _, _, _ = _search(b_key, n * 0 + SAMPLE, rank, rank // 8)
    return low


@triton.jit
def _collect(p_row, p_key, p_index, first, n, step, threshold, before, room, TILE: tl.constexpr):
    """Put the row's values that reach the threshold on the list, from place `before` on.

    Looks at tiles `first`, `first + step`, … Returns how many are on the list, or would be if there
    were room.
    """
    o_t = tl.arange(0, TILE)
    for t in range(first * TILE, n, step * TILE):
        b_key = _keys(p_row, t + o_t, n)
        m_hit = b_key >= threshold
        b_place = before + tl.cumsum(m_hit.to(tl.int32), 0) - 1
        m_kept = m_hit & (b_place < room)
        tl.store(p_key + b_place, b_key, mask=m_kept)
        tl.store(p_index + b_place, t + o_t, mask=m_kept)
        before += tl.sum(m_hit.to(tl.int32), 0)
    return before


@triton.jit
def _count(p_row, first, n, step, threshold, TILE: tl.constexpr):
    """How many values of those tiles reach the threshold."""
    o_t = tl.arange(0, TILE)
    b_hits = tl.zeros([TILE], tl.int32)
    for t in range(first * TILE, n, step * TILE):
        b_hits += (_keys(p_row, t + o_t, n) >= threshold).to(tl.int32)
    return tl.sum(b_hits, 0)


@triton.jit
def _refine(p_row, n, k, threshold, count, room, TILE: tl.constexpr):
    """Narrow the interval by counting the row until at most `room` values reach its lower end.

    Returns like `_search`. `count` values reach `threshold`; that is not what was hoped for.
    """
    o_t = tl.arange(0, TILE)
    b_least = tl.full([TILE], MOST, tl.int32)
    b_most = tl.full([TILE], LEAST, tl.int32)
    for t in range(0, n, TILE):
        b_key = _keys(p_row, t + o_t, n)
        b_least = tl.minimum(b_least, tl.where(b_key == ABSENT, MOST, b_key))
        b_most = tl.maximum(b_most, b_key)
    low = tl.min(b_least, 0)
    high = tl.max(b_most, 0) + 1
    n_low = n
    n_high = n * 0
    low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, threshold, count)
    while (n_low > room) & (low + 1 < high):
        p_0, p_1, p_2 = _pivots(k, low, n_low, high, n_high)
        b_0 = tl.zeros([TILE], tl.int32)
        b_1 = tl.zeros([TILE], tl.int32)
        b_2 = tl.zeros([TILE], tl.int32)
        for t in range(0, n, TILE):
            b_key = _keys(p_row, t + o_t, n)
            b_0 += (b_key >= p_0).to(tl.int32)
            b_1 += (b_key >= p_1).to(tl.int32)
            b_2 += (b_key >= p_2).to(tl.int32)
        c_0, c_1, c_2 = _sum_three(b_0, b_1, b_2)
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_0, c_0)
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_1, c_1)
        low, n_low, high, n_high = _narrow(k, low, n_low, high, n_high, p_2, c_2)
    return low, n_low, high, n_high


@triton.jit
def _finish(
    p_row, p_key, p_index, p_out, n, k, threshold, count,
    NARROW: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Select from the list of candidates; make a better list first where it does not serve."""
    if (count < k) | (count > WIDE):
        low, count, high, n_high = _refine(p_row, n, k, threshold, count, WIDE, TILE)
        if count <= WIDE:
            _collect(p_row, p_key, p_index, 0, n, 1, low, n * 0, WIDE, TILE)
            tl.debug_barrier()
        else:  # so many equal values that none but them is left to choose from
            o_t = tl.arange(0, TILE)
            written = n * 0
            ties = n * 0
            for t in range(0, n, TILE):
                b_key = _keys(p_row, t + o_t, n)
                written, ties = _write(p_out, b_key, t + o_t, low, high, written, ties, k - n_high)
    if count <= NARROW:
        _select_candidates(p_key, p_index, p_out, count, k, NARROW)
    elif count <= WIDE:
        _select_candidates(p_key, p_index, p_out, count, k, WIDE)


@triton.jit
def _identity(p_out, n, k, KB: tl.constexpr):
    o_k = tl.arange(0, KB)
    tl.store(p_out + o_k, tl.where(o_k < n, o_k, -1), mask=o_k < k)


@triton.jit
def _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
            USE_START: tl.constexpr, LAST_ONLY: tl.constexpr):  # fmt: skip
    """First column and number of columns of a row, inside the matrix whatever is given."""
    start = n_columns * 0
    if USE_START:
        start = tl.load(p_start + i_row)
    i_b = i_row // next_n
    i_n = i_row % next_n
    if LAST_ONLY:
        end = tl.load(p_end + i_b * s_end) - (next_n - 1 - i_n)
    else:
        end = tl.load(p_end + i_b * s_end + i_n * s_end_next)
    start = tl.minimum(tl.maximum(start, 0), n_columns)
    end = tl.minimum(end, n_columns)
    return start, tl.maximum(end - start, 0)


ARGUMENTS = [
    "n_rows", "n_columns", "next_n", "k", "n_parts", "s_row", "s_out", "s_end", "s_end_next",
]  # fmt: skip


@triton.jit(do_not_specialize=ARGUMENTS)
def topk_kernel(
    p_logits, p_start, p_end, p_out, p_counter, p_key, p_index,
    n_rows, n_columns, next_n, k, n_parts, s_row, s_out, s_end, s_end_next,
    KB: tl.constexpr,
    SAMPLE: tl.constexpr,
    NARROW: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    USE_START: tl.constexpr,
    LAST_ONLY: tl.constexpr,
    ALIGN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Top-k of rows.

    SPLIT: `n_parts` programs share a row, and rows have a list of candidates each. Otherwise each
    of `n_parts` programs does one row after the other and has a list of its own.

    ALIGN: elements that the distance of every row's first value from `p_logits` is a multiple of.
    """
    i = tl.program_id(0)
    if PDL:
        gdc_wait()
    if SPLIT:
        i_row = i % n_rows
        i_part = i // n_rows
        start, n = _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
                           USE_START, LAST_ONLY)  # fmt: skip
        p_row = p_logits + tl.multiple_of(i_row.to(tl.int64) * s_row + start, ALIGN)
        p_to = p_out + i_row.to(tl.int64) * s_out
        if n <= WIDE:
            if i_part == 0:
                if n <= k:
                    _identity(p_to, n, k, KB)
                elif n <= NARROW:
                    _select_row(p_row, p_to, n, k, NARROW)
                else:
                    _select_row(p_row, p_to, n, k, WIDE)
        else:
            n_active = tl.minimum(n_parts, tl.cdiv(n, TILE))
            if i_part < n_active:
                p_count = p_counter + 2 * i_row
                p_keys = p_key + i_row.to(tl.int64) * WIDE
                p_indices = p_index + i_row.to(tl.int64) * WIDE
                threshold = _threshold(p_row, n, k, SAMPLE)
                mine = _count(p_row, i_part, n, n_active, threshold, TILE)
                before = tl.atomic_add(p_count, mine, sem="relaxed")
                _collect(p_row, p_keys, p_indices, i_part, n, n_active, threshold, before, WIDE,
                         TILE)  # fmt: skip
                # All threads' candidates are written before this program is counted as done.
                tl.debug_barrier()
                if tl.atomic_add(p_count + 1, 1, sem="acq_rel") == n_active - 1:
                    tl.debug_barrier()
                    count = tl.atomic_xchg(p_count, 0, sem="relaxed")
                    tl.store(p_count + 1, 0)
                    _finish(p_row, p_keys, p_indices, p_to, n, k, threshold, count, NARROW, WIDE,
                            TILE)  # fmt: skip
    else:
        p_keys = p_key + i.to(tl.int64) * WIDE
        p_indices = p_index + i.to(tl.int64) * WIDE
        for i_next in range(i, n_rows, n_parts):
            i_row = n_rows * 0 + i_next  # in the interpreter a loop's index is no tensor
            start, n = _bounds(p_start, p_end, i_row, next_n, s_end, s_end_next, n_columns,
                               USE_START, LAST_ONLY)  # fmt: skip
            p_row = p_logits + tl.multiple_of(i_row.to(tl.int64) * s_row + start, ALIGN)
            p_to = p_out + i_row.to(tl.int64) * s_out
            if n <= k:
                _identity(p_to, n, k, KB)
            elif n <= NARROW:
                _select_row(p_row, p_to, n, k, NARROW)
            elif n <= WIDE:
                _select_row(p_row, p_to, n, k, WIDE)
            else:
                threshold = _threshold(p_row, n, k, SAMPLE)
                count = _collect(p_row, p_keys, p_indices, 0, n, 1, threshold, n * 0, WIDE, TILE)
                tl.debug_barrier()
                _finish(p_row, p_keys, p_indices, p_to, n, k, threshold, count, NARROW, WIDE, TILE)
                tl.debug_barrier()


def signature() -> dict[str, str]:
    """Triton types of `topk_kernel`'s arguments for compiling it ahead of time."""
    integers = ("p_start", "p_end", "p_out", "p_counter", "p_key", "p_index")
    return {"p_logits": "*fp32"} | dict.fromkeys(integers, "*i32") | dict.fromkeys(ARGUMENTS, "i32")
