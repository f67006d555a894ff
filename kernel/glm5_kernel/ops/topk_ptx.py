"""PTX of the top-k kernel: what Triton has no words for, histograms and counters in shared memory.

A block stands between braces, with names of its own. `$0`, `$1`, … are a thread's operands: n of
each kind, results first. `tests/kernel/ptx.py` runs these blocks without a GPU.

Keys are int32 in the order of the values; the least of all is that of what is no value.
"""
# Functions that Triton calls while it compiles are untyped.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import triton


@triton.constexpr_function
def tally_code(n, bins):
    """A histogram, for n values a thread.

    Operands: n counts (out), n bins (others than 0 … bins − 1 are not counted), n positions.
    """
    place = "shl.b32 at, ${}, 2;\nadd.u32 at, at, base;\n"
    add = [
        f"setp.lt.u32 some, ${n + j}, {bins};\n{place.format(n + j)}"
        "@some red.shared.add.u32 [at], 1;"
        for j in range(n)
    ]
    clear = [f"{place.format(2 * n + j)}st.shared.b32 [at], 0;" for j in range(n)]
    read = [f"{place.format(2 * n + j)}ld.shared.b32 ${j}, [at];" for j in range(n)]
    wait = ["bar.sync 0;"]
    start = [
        f"{{\n.shared .align 16 .b32 tally[{bins}];\n.reg .b32 base, at;\n.reg .pred some;",
        "mov.u32 base, tally;",
    ]
    return "\n".join([*start, *wait, *clear, *wait, *add, *wait, *read, "}"])


@triton.constexpr_function
def largest_code(n, warps, numbered):
    """An exact selection, for n keys a thread.

    Operands: n numbers (out: 0 for each key that is selected, or, if `numbered`, one of its own
    from 0 on, and -1 for others), n keys, n indices, n times how many are wanted, n times how many
    more will do.

    The first pass sorts values into bins of equal width between the least and the largest, so
    that bins are short whatever the values' scale is. Where the bin of the last one wanted holds
    more than a warp can compare, passes over 11, 11 and 10 bits of the keys follow, and as many
    over the indices of equal keys. Bit j of `alive` is 1 while key j may be wanted, of `taken` once
    it is.
    """
    each = 2048 // (32 * warps)
    parts = [
        *_declared(n, warps, each), *_cleared(each), *_extent(n), *_by_value(n), "count:",
        *_counted(n, each), *_bin_of_the_last(each), *_sorted_out(n), *_next_digits(n),
        "compare:", *_gathered(n), *_compared(n),
        "place:", *(_numbered(n) if numbered else _marked(n)), "}",
    ]  # fmt: skip
    return "\n".join(parts)


@triton.constexpr_function
def _declared(n, warps, each):
    """Memory and registers; `mine` are a thread's bins, `there` is its lane's place in a list of
    warps, and `warp` its warp's."""
    return [
        f"{{\n.shared .align 16 .b32 tally[2048];\n.shared .b32 most[{warps}];",
        f".shared .b32 least[{warps}];\n.shared .b32 sums[{warps}];\n.shared .b32 told[3];",
        ".shared .b32 few_key[32];\n.shared .b32 few_index[32];\n.shared .b32 counter[2];",
        ".reg .b32 tid, lane, warp, below, at, mine, there, mask, word, shift;",
        ".reg .b32 need, will_do, alive, taken, under, equal, bin, before, reach, size, pass;",
        f".reg .b32 high, low, sum, scan, other, first, rank, i, total, digit<{n}>, count<{each}>;",
        ".reg .b32 hits, key, index, other_key, other_index;\n.reg .f32 top, width, scale, x;",
        ".reg .pred some, more, is_key;",
        "mov.u32 tid, %tid.x;\nmov.u32 lane, %laneid;\nmov.u32 below, %lanemask_lt;",
        "shr.u32 warp, tid, 5;\nmov.u32 at, tally;",
        f"mad.lo.u32 mine, tid, {4 * each}, at;\nand.b32 there, lane, {warps - 1};",
        "shl.b32 there, there, 2;\nshl.b32 warp, warp, 2;",
        f"mov.b32 need, ${3 * n};\nmov.b32 will_do, ${4 * n};",
        "mov.b32 alive, 0;\nmov.b32 taken, 0;\nmov.b32 pass, 0;",
    ]


@triton.constexpr_function
def _cleared(each):
    """A thread's bins."""
    return [f"st.shared.v4.b32 [mine+{4 * j}], {{0, 0, 0, 0}};" for j in range(0, each, 4)]


@triton.constexpr_function
def _extent(n):
    """`high` and `low`, the largest and the least key of all threads.

    Of the least the distance from what is no value is taken, which so is the farthest.
    """
    lines = [f"mov.b32 high, {-(2**31)};\nmov.b32 low, -1;"]
    for j in range(n):
        lines += [
            f"max.s32 high, high, ${n + j};\nadd.s32 other, ${n + j}, {2**31 - 1};",
            f"min.u32 low, low, other;\nsetp.ne.s32 some, ${n + j}, {-(2**31)};",
            f"@some or.b32 alive, alive, {1 << j};",
        ]
    both = [
        "redux.sync.max.s32 high, high, 0xffffffff;",
        "redux.sync.min.u32 low, low, 0xffffffff;",
    ]
    return [
        *lines,
        *both,
        "mov.u32 at, most;\nadd.u32 at, at, warp;\nmov.u32 other, least;",
        "add.u32 other, other, warp;\nsetp.eq.u32 some, lane, 0;",
        "@some st.shared.b32 [at], high;\n@some st.shared.b32 [other], low;",
        "setp.eq.u32 some, tid, 0;\n@some st.shared.b32 [counter], 0;",
        "@some st.shared.b32 [counter+4], 0;\nbar.sync 0;",
        "mov.u32 at, most;\nadd.u32 at, at, there;\nld.shared.b32 high, [at];",
        "mov.u32 at, least;\nadd.u32 at, at, there;\nld.shared.b32 low, [at];",
        *both,
        f"sub.s32 low, low, {2**31 - 1};",
    ]


@triton.constexpr_function
def _value(key, into):
    """The float32 that a key is of."""
    return [
        f"shr.s32 other, {key}, 31;\nand.b32 other, other, 0x7fffffff;",
        f"xor.b32 other, other, {key};\nmov.b32 {into}, other;",
    ]


@triton.constexpr_function
def _by_value(n):
    """Each key's bin, `digit`: those of the largest values come first.

    There is no scale where an end is infinite or no number: then all values are in the first bin.
    """
    lines = [
        *_value("high", "top"), *_value("low", "x"),
        "sub.rn.f32 width, top, x;\nrcp.approx.f32 scale, width;",
        "mul.rn.f32 scale, scale, 2047.0;\ntestp.finite.f32 some, width;",
        "selp.f32 scale, scale, 0f00000000, some;",
    ]  # fmt: skip
    for j in range(n):
        lines += [
            *_value(f"${n + j}", "x"),
            "sub.rn.f32 x, top, x;\nmul.rn.f32 x, x, scale;",
            f"cvt.rzi.u32.f32 digit{j}, x;\nmin.u32 digit{j}, digit{j}, 2047;",
        ]
    return lines


@triton.constexpr_function
def _counted(n, each):
    """How many are in a thread's bins (`count`, `sum`), in those of the threads before it
    (`first`); the bins are cleared for the next pass."""
    lines = []
    for j in range(n):
        lines += [
            f"and.b32 other, alive, {1 << j};\nsetp.ne.u32 some, other, 0;",
            f"mov.u32 at, tally;\nmad.lo.u32 at, digit{j}, 4, at;",
            "@some red.shared.add.u32 [at], 1;",
        ]
    lines.append("bar.sync 0;")
    names = [f"count{j}" for j in range(each)]
    for j in range(0, each, 4):
        lines.append(f"ld.shared.v4.b32 {{{', '.join(names[j : j + 4])}}}, [mine+{4 * j}];")
    lines += [*_cleared(each), "mov.b32 sum, 0;", *(f"add.u32 sum, sum, {each};" for each in names)]
    lines.append("mov.b32 scan, sum;")
    for step in (1, 2, 4, 8, 16):
        lines += [
            f"shfl.sync.up.b32 other|some, scan, {step}, 0, 0xffffffff;",
            "@some add.u32 scan, scan, other;",
        ]
    return [
        *lines,
        "setp.eq.u32 some, lane, 31;\nmov.u32 at, sums;\nadd.u32 at, at, warp;",
        "@some st.shared.b32 [at], scan;\nbar.sync 0;\nsub.u32 first, scan, sum;",
        "mov.u32 at, sums;\nadd.u32 at, at, there;\nld.shared.b32 other, [at];",
        "shl.b32 i, lane, 2;\nsetp.lt.u32 some, i, warp;\nselp.b32 other, other, 0, some;",
        "redux.sync.add.u32 other, other, 0xffffffff;\nadd.u32 first, first, other;",
    ]


@triton.constexpr_function
def _bin_of_the_last(each):
    """The one bin that the rank falls into tells everybody its number, how many are in those
    before it, and how many up to its end."""
    lines = []
    for j in range(each):
        lines += [
            "setp.lt.u32 more, first, need;\nmov.b32 other, first;",
            f"add.u32 first, first, count{j};",
            f"setp.ge.and.u32 some, first, need, more;\nmad.lo.u32 bin, tid, {each}, {j};",
            "@some st.shared.b32 [told], bin;\n@some st.shared.b32 [told+4], other;",
            "@some st.shared.b32 [told+8], first;",
        ]
    return [
        *lines,
        "bar.sync 0;\nld.shared.b32 bin, [told];\nld.shared.b32 before, [told+4];",
        "ld.shared.b32 reach, [told+8];\nmov.b32 under, 0;\nmov.b32 equal, 0;",
    ]


@triton.constexpr_function
def _sorted_out(n):
    """Those in earlier bins are taken, those in later ones are not. Where the bin of the last is
    wanted as a whole, or so few are in it that a warp can compare them, no pass follows."""
    lines = []
    for j in range(n):
        lines += [
            f"setp.lt.u32 some, digit{j}, bin;\n@some or.b32 under, under, {1 << j};",
            f"setp.eq.u32 some, digit{j}, bin;\n@some or.b32 equal, equal, {1 << j};",
        ]
    return [
        *lines,
        "and.b32 under, under, alive;\nor.b32 taken, taken, under;\nand.b32 alive, alive, equal;",
        "sub.u32 need, need, before;\nsub.u32 size, reach, before;",
        "add.u32 other, need, will_do;\nsetp.ge.u32 some, pass, 6;",
        "setp.le.or.u32 some, size, other, some;",
        "@some or.b32 taken, taken, alive;\n@some bra place;",
        "setp.le.u32 some, size, 32;\n@some bra compare;",
    ]


@triton.constexpr_function
def _next_digits(n):
    """For another pass: bits of the keys, the largest first, then of the indices."""
    lines = [
        "add.u32 pass, pass, 1;\nsetp.gt.u32 is_key, pass, 3;\nselp.b32 i, 3, 0, is_key;",
        "not.pred is_key, is_key;\nsub.u32 i, pass, i;\nmul.lo.u32 i, i, 11;",
        "mov.b32 shift, 32;\nsub.s32 shift, shift, i;\nmax.s32 shift, shift, 0;",
        "setp.eq.u32 some, shift, 0;\nselp.b32 mask, 1023, 2047, some;",
    ]
    for j in range(n):
        lines += [
            f"xor.b32 word, ${n + j}, 0x7fffffff;\nselp.b32 word, word, ${2 * n + j}, is_key;",
            f"shr.u32 word, word, shift;\nand.b32 digit{j}, word, mask;",
        ]
    return [*lines, "bra.uni count;"]


@triton.constexpr_function
def _gathered(n):
    """`key` and `index` of the few, one in each lane of every warp."""
    lines = ["setp.eq.u32 some, alive, 0;\n@some bra gathered;"]
    for j in range(n):
        lines += [
            f"and.b32 other, alive, {1 << j};\nsetp.ne.u32 some, other, 0;",
            "@some atom.shared.add.u32 i, [counter], 1;\nmov.u32 at, few_key;",
            "mad.lo.u32 at, i, 4, at;",
            f"@some st.shared.b32 [at], ${n + j};\nmov.u32 at, few_index;",
            f"mad.lo.u32 at, i, 4, at;\n@some st.shared.b32 [at], ${2 * n + j};",
        ]
    return [
        *lines,
        "gathered:\nbar.sync 0;\nmov.u32 at, few_key;\nmad.lo.u32 at, lane, 4, at;",
        "ld.shared.b32 key, [at];\nmov.u32 at, few_index;\nmad.lo.u32 at, lane, 4, at;",
        "ld.shared.b32 index, [at];\nmov.b32 rank, 0;\nmov.b32 i, 0;",
    ]


@triton.constexpr_function
def _compared(n):
    """The last that is wanted is the one that need − 1 of the few come before; up to it all of them
    are taken."""
    lines = [
        "next:\nshfl.sync.idx.b32 other_key, key, i, 31, 0xffffffff;",
        "shfl.sync.idx.b32 other_index, index, i, 31, 0xffffffff;",
        "setp.lt.s32 some, other_index, index;\nsetp.eq.and.s32 some, other_key, key, some;",
        "setp.gt.or.s32 some, other_key, key, some;\n@some add.u32 rank, rank, 1;",
        "add.u32 i, i, 1;\nsetp.lt.u32 some, i, size;\n@some bra.uni next;",
        "add.u32 rank, rank, 1;\nsetp.lt.u32 more, lane, size;",
        "setp.eq.and.u32 some, rank, need, more;\nvote.sync.ballot.b32 i, some, 0xffffffff;",
        "bfind.u32 i, i;\nshfl.sync.idx.b32 key, key, i, 31, 0xffffffff;",
        "shfl.sync.idx.b32 index, index, i, 31, 0xffffffff;",
    ]
    for j in range(n):
        lines += [
            f"setp.le.s32 some, ${2 * n + j}, index;",
            f"setp.eq.and.s32 some, ${n + j}, key, some;",
            f"setp.gt.or.s32 some, ${n + j}, key, some;\nand.b32 other, alive, {1 << j};",
            "setp.ne.and.u32 some, other, 0, some;",
            f"@some or.b32 taken, taken, {1 << j};",
        ]
    return lines


@triton.constexpr_function
def _marked(n):
    """Without numbers."""
    lines = []
    for j in range(n):
        lines += [
            f"and.b32 other, taken, {1 << j};\nsetp.ne.u32 some, other, 0;",
            f"selp.b32 ${j}, 0, -1, some;",
        ]
    return lines


@triton.constexpr_function
def _numbered(n):
    """A warp's numbers follow each other, so that its stores lie together."""
    taken = [f"and.b32 other, taken, {1 << j};\nsetp.ne.u32 some, other, 0;" for j in range(n)]
    lines = _claimed(taken, [f"digit{j}" for j in range(n)], "shared", "counter+4")
    for j in range(n):
        lines += [taken[j], f"selp.b32 ${j}, digit{j}, -1, some;"]
    return lines


@triton.constexpr_function
def claim_code(n):
    """A number of its own for each hit from a counter in memory, a warp at a time.

    Operands: n numbers (out), n hits (0 or 1), n times the counter's address.
    """
    start = [
        "{\n.reg .b32 hits, before, total, below, lane, first;\n.reg .pred some;",
        "mov.u32 below, %lanemask_lt;\nmov.u32 lane, %laneid;",
    ]
    hits = [f"setp.ne.s32 some, ${n + j}, 0;" for j in range(n)]
    lines = _claimed(hits, [f"${j}" for j in range(n)], "global", f"${2 * n}")
    return "\n".join([*start, *lines, "}"])


@triton.constexpr_function
def _claimed(hits, numbers, space, counter):
    """Numbers for a warp's hits from a counter, which goes up by as many.

    hits: lines that set `some` where there is one; numbers: the registers that get them.
    """
    lines = ["mov.u32 total, 0;\nmov.u32 first, 0;"]
    for hit, number in zip(hits, numbers, strict=True):
        lines += [
            f"{hit}\nvote.sync.ballot.b32 hits, some, 0xffffffff;",
            "and.b32 before, hits, below;\npopc.b32 before, before;",
            f"add.u32 {number}, total, before;",
            "popc.b32 hits, hits;\nadd.u32 total, total, hits;",
        ]
    lines += [
        "setp.eq.u32 some, lane, 0;\nsetp.ne.and.u32 some, total, 0, some;",
        f"@some atom.{space}.add.u32 first, [{counter}], total;",
        "shfl.sync.idx.b32 first, first, 0, 31, 0xffffffff;",
    ]
    return lines + [f"add.u32 {number}, {number}, first;" for number in numbers]


@triton.constexpr_function
def operands(n, kinds):
    """Constraints of n results and n operands of each of `kinds`."""
    return ",".join(["=&r"] * n + [kind for kind in kinds for _ in range(n)])
