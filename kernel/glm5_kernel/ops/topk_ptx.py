"""PTX of the top-k kernel: what Triton has no words for, histograms and counters in shared memory.

A block stands between braces, with names of its own. `$0`, `$1`, … are a thread's operands: n of
each kind, results first. `tests/kernel/ptx.py` runs these blocks without a GPU.

Keys are int32 in the order of the values.
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
    """An exact selection, for n values a thread.

    Operands: n numbers (out: 0 for each value that is selected, or, if `numbered`, one of its own
    from 0 on, and -1 for others), n values' bits (all ones where there is none), n indices, and n
    times each: how many are wanted, how many more will do, how many values all threads have.

    The first pass sorts values into bins of equal width between the least and the largest, so
    that bins are short whatever the values' scale is. Where the bin of the last one wanted holds
    more than a warp has lanes, or a value has no bin, passes over 11, 11 and 10 bits of the keys
    follow, and as many over the indices of equal keys. Bit j of `alive` is 1 while value j may be
    wanted, of `taken` once it is.
    """
    each = 2048 // (32 * warps)
    parts = [
        *_declared(n, warps, each), *_cleared(each), *_extent(n), *_by_value(n), "count:",
        *_counted(n, each, warps), *_bin_of_the_last(each), *_sorted_out(n), *_next_digits(n),
        "compare:", *_gathered(n), *_compared(n, warps),
        "place:", *(_numbered(n) if numbered else _marked(n)), "}",
    ]  # fmt: skip
    return "\n".join(parts)


@triton.constexpr_function
def _declared(n, warps, each):
    """Memory and registers. `mine` is the address of a thread's bins; in lists of one number for
    each warp `warp` is the offset of a thread's own warp, and `there` that of the warp with its
    lane's number. Bin 2048, behind the others, takes what is in none of them."""
    words = (n + 3) // 4
    return [
        f"{{\n.shared .align 16 .b32 tally[2052];\n.shared .b32 most[{warps}];",
        f".shared .b32 least[{warps}];\n.shared .b32 sums[{warps}];",
        ".shared .align 16 .b32 told[4];\n.shared .align 16 .b32 few[64];",
        ".shared .b32 chosen[32];\n.shared .b32 counter[2];",
        ".reg .b32 tid, lane, warp, at, bins, mine, there, mask, word, shift, slot;",
        ".reg .b32 need, will_do, expected, alive, taken, bin, before, reach, size, pass;",
        f".reg .b32 high, low, sum, scan, other, first, i, total, digit<{n}>, count<{each}>;",
        f".reg .b32 hits<{words}>, below<{words}>, sums<{words}>;",
        ".reg .b32 key, index, other_key, other_index;\n.reg .f32 top, bottom, scale, x, zero;",
        ".reg .pred some, more, is_key;",
        "mov.u32 tid, %tid.x;\nmov.u32 lane, %laneid;",
        "shr.u32 warp, tid, 5;\nmov.u32 bins, tally;",
        f"mad.lo.u32 mine, tid, {4 * each}, bins;\nand.b32 there, lane, {warps - 1};",
        "shl.b32 there, there, 2;\nshl.b32 warp, warp, 2;",
        f"mov.b32 need, ${3 * n};\nmov.b32 will_do, ${4 * n};\nmov.b32 expected, ${5 * n};",
        "mov.b32 taken, 0;\nmov.b32 pass, 0;",
    ]


@triton.constexpr_function
def _vector(each):
    """The width of an access to a thread's bins, and where each begins."""
    width = min(4, each)
    return width, range(0, each, width)


@triton.constexpr_function
def _cleared(each):
    """Zeros in a thread's bins."""
    width, starts = _vector(each)
    zeros = ", ".join(["0"] * width)
    return [f"st.shared.v{width}.b32 [mine+{4 * j}], {{{zeros}}};" for j in starts]


@triton.constexpr_function
def _extent(n):
    """`top` and `bottom`, the largest and the least of all values, without NaNs.

    They are compared as values within a thread, and as keys between threads.
    """
    lines = ["mov.b32 top, 0fFF800000;\nmov.b32 bottom, 0f7F800000;"]
    for j in range(n):
        lines.append(f"mov.b32 x, ${n + j};\nmax.f32 top, top, x;\nmin.f32 bottom, bottom, x;")
    both = [
        "redux.sync.max.s32 high, high, 0xffffffff;",
        "redux.sync.min.s32 low, low, 0xffffffff;",
    ]
    return [
        *lines,
        "mov.b32 high, top;\nmov.b32 low, bottom;",
        *_flipped("high"), *_flipped("low"), *both,
        "mov.u32 at, most;\nadd.u32 at, at, warp;\nmov.u32 other, least;",
        "add.u32 other, other, warp;\nsetp.eq.u32 some, lane, 0;",
        "@some st.shared.b32 [at], high;\n@some st.shared.b32 [other], low;",
        "setp.eq.u32 some, tid, 0;\n@some st.shared.b32 [counter], 0;",
        "@some st.shared.b32 [counter+4], 0;\nbar.sync 0;",
        "mov.u32 at, most;\nadd.u32 at, at, there;\nld.shared.b32 high, [at];",
        "mov.u32 at, least;\nadd.u32 at, at, there;\nld.shared.b32 low, [at];",
        *both, *_flipped("high"), *_flipped("low"),
        "mov.b32 top, high;\nmov.b32 bottom, low;",
    ]  # fmt: skip


@triton.constexpr_function
def _flipped(name):
    """Between a value's bits and its key, in place."""
    return [
        f"shr.s32 other, {name}, 31;\nand.b32 other, other, 0x7fffffff;",
        f"xor.b32 {name}, {name}, other;",
    ]


@triton.constexpr_function
def _key(value, into):
    """A value's key: both zeros have the same, and NaN has the largest.

    `zero` is made from the pass, lest the assembler makes all keys ahead of the first pass, after
    which hardly any are needed.
    """
    return [
        f"mov.b32 x, {value};\nadd.rn.f32 x, x, zero;\nmov.b32 {into}, x;",
        *_flipped(into), "testp.notanumber.f32 some, x;",
        f"selp.b32 {into}, 0x7fffffff, {into}, some;",
    ]  # fmt: skip


@triton.constexpr_function
def _zero():
    """See `_key`; `pass` is never as large as 256."""
    return ["shr.u32 other, pass, 8;\nmov.b32 zero, other;"]


@triton.constexpr_function
def _by_value(n):
    """Each value's bin, `digit`: those of the largest values come first.

    With 2^23 added, the distance from the top, scaled to 0 … 2047, is in the last bits of the sum.
    Where `top` or `bottom` is infinite, or both are equal, values have no bin; nor has a NaN.
    """
    lines = [
        "sub.rn.f32 scale, top, bottom;\nrcp.approx.ftz.f32 scale, scale;",
        "mul.rn.f32 scale, scale, 0f44FFE000;",
    ]
    for j in range(n):
        lines.append(
            f"mov.b32 x, ${n + j};\nsub.rn.f32 x, top, x;\nfma.rn.f32 x, x, scale, 0f4B000000;\n"
            f"mov.b32 digit{j}, x;\nsub.u32 digit{j}, digit{j}, 0x4b000000;\n"
            f"min.u32 digit{j}, digit{j}, 2048;"
        )
    return lines


@triton.constexpr_function
def _counted(n, each, warps):
    """How many are in a thread's bins (`count`, `sum`), in those of the threads before it
    (`first`), and in all (`total`); the bins are cleared for the next pass. Where some value has no
    bin, keys decide."""
    lines = []
    for j in range(n):
        lines.append(f"mad.lo.u32 at, digit{j}, 4, bins;\nred.shared.add.u32 [at], 1;")
    lines.append("bar.sync 0;")
    names = [f"count{j}" for j in range(each)]
    width, starts = _vector(each)
    for j in starts:
        lines.append(
            f"ld.shared.v{width}.b32 {{{', '.join(names[j : j + width])}}}, [mine+{4 * j}];"
        )
    lines += [*_cleared(each), "mov.b32 sum, 0;", *(f"add.u32 sum, sum, {each};" for each in names)]
    return [
        *lines,
        "mov.b32 scan, sum;",
        *_scanned(["scan"]),
        "setp.eq.u32 some, lane, 31;\nmov.u32 at, sums;\nadd.u32 at, at, warp;",
        "@some st.shared.b32 [at], scan;\nbar.sync 0;\nsub.u32 first, scan, sum;",
        "mov.u32 at, sums;\nadd.u32 at, at, there;\nld.shared.b32 total, [at];",
        f"setp.lt.u32 some, lane, {warps};\nselp.b32 total, total, 0, some;",
        "shl.b32 i, lane, 2;\nsetp.lt.u32 some, i, warp;\nselp.b32 other, total, 0, some;",
        "redux.sync.add.u32 total, total, 0xffffffff;",
        "redux.sync.add.u32 other, other, 0xffffffff;\nadd.u32 first, first, other;",
        "setp.ne.u32 some, total, expected;\n@some bra keys;",
    ]


@triton.constexpr_function
def _bin_of_the_last(each):
    """The thread that has the bin of the last one wanted tells all the number of that bin, how many
    are in the bins before it, and how many up to its end."""
    lines = [
        "add.u32 other, first, sum;\nsetp.lt.u32 some, first, need;",
        "setp.ge.and.u32 some, other, need, some;\nnot.pred some, some;\n@some bra told_all;",
    ]
    for j in range(each):
        lines += [
            "setp.lt.u32 more, first, need;\nmov.b32 other, first;",
            f"add.u32 first, first, count{j};",
            f"setp.ge.and.u32 some, first, need, more;\nmad.lo.u32 bin, tid, {each}, {j};",
            "@some st.shared.v4.b32 [told], {bin, other, first, 0};",
        ]
    return [
        *lines,
        "told_all:\nbar.sync 0;\nld.shared.v4.b32 {bin, before, reach, other}, [told];",
    ]


@triton.constexpr_function
def _sorted_out(n):
    """Those in earlier bins are taken, those in later ones are not. Where the bin of the last one
    is taken as a whole, or has 32 at most, which can be compared, no pass follows."""
    lines = ["mov.b32 alive, 0;"]
    for j in range(n):
        lines += [
            f"setp.lt.u32 some, digit{j}, bin;\n@some or.b32 taken, taken, {1 << j};",
            f"setp.eq.u32 some, digit{j}, bin;\n@some or.b32 alive, alive, {1 << j};",
        ]
    return [
        *lines,
        "sub.u32 need, need, before;\nsub.u32 size, reach, before;\nmov.b32 expected, size;",
        "add.u32 other, need, will_do;\nsetp.ge.u32 some, pass, 6;",
        "setp.le.or.u32 some, size, other, some;",
        "@some or.b32 taken, taken, alive;\n@some bra place;",
        "setp.le.u32 some, size, 32;\n@some bra compare;\nbra.uni next;",
    ]


@triton.constexpr_function
def _next_digits(n):
    """For another pass: bits of the keys, the largest key first, then of the indices. Who comes by
    the label `keys` begins anew, with all values alive."""
    lines = [f"keys:\nmov.b32 alive, 0;\nmov.b32 expected, ${5 * n};"]
    for j in range(n):
        lines.append(f"setp.ne.s32 some, ${n + j}, -1;\n@some or.b32 alive, alive, {1 << j};")
    lines += [
        "next:\nadd.u32 pass, pass, 1;\nsetp.gt.u32 is_key, pass, 3;\nselp.b32 i, 3, 0, is_key;",
        "not.pred is_key, is_key;\nsub.u32 i, pass, i;\nmul.lo.u32 i, i, 11;",
        "mov.b32 shift, 32;\nsub.s32 shift, shift, i;\nmax.s32 shift, shift, 0;",
        "setp.eq.u32 some, shift, 0;\nselp.b32 mask, 1023, 2047, some;",
        *_zero(),
    ]
    for j in range(n):
        lines += [
            *_key(f"${n + j}", "word"),
            f"xor.b32 word, word, 0x7fffffff;\nselp.b32 word, word, ${2 * n + j}, is_key;",
            f"shr.u32 word, word, shift;\nand.b32 digit{j}, word, mask;",
            f"and.b32 other, alive, {1 << j};\nsetp.ne.u32 some, other, 0;",
            f"selp.b32 digit{j}, digit{j}, 2048, some;",
        ]
    return [*lines, "bra.uni count;"]


@triton.constexpr_function
def _gathered(n):
    """Keys and indices of the few, each in a slot of its own; a thread's follow each other."""
    lines = [
        "setp.eq.u32 some, alive, 0;\n@some bra gathered;\npopc.b32 i, alive;",
        "atom.shared.add.u32 slot, [counter], i;\nmov.u32 at, few;\nmad.lo.u32 at, slot, 8, at;",
        *_zero(),
    ]
    for j in range(n):
        lines += [
            f"and.b32 other, alive, {1 << j};\nsetp.eq.u32 some, other, 0;\n@some bra passed{j};",
            *_key(f"${n + j}", "key"),
            f"st.shared.v2.b32 [at], {{key, ${2 * n + j}}};\nadd.u32 at, at, 8;\npassed{j}:",
        ]
    return [*lines, "gathered:\nbar.sync 0;"]


@triton.constexpr_function
def _compared(n, warps):
    """One of the few is chosen where fewer than `need` come before it. A warp finds that out for
    the one of its own number and every `warps`-th after it: each lane compares it with another."""
    lines = [
        "mov.u32 at, few;\nmad.lo.u32 at, lane, 8, at;\nld.shared.v2.b32 {key, index}, [at];",
        "setp.lt.u32 more, lane, size;\nshr.u32 i, warp, 2;",
    ]
    for start in range(0, 32, warps):
        if start:
            lines.append(f"add.u32 i, i, {warps};")
        lines += [
            "setp.ge.u32 some, i, size;\n@some bra ranked;",
            "mov.u32 at, few;\nmad.lo.u32 at, i, 8, at;",
            "ld.shared.v2.b32 {other_key, other_index}, [at];",
            "setp.lt.s32 some, index, other_index;\nsetp.eq.and.s32 some, key, other_key, some;",
            "setp.gt.or.s32 some, key, other_key, some;\nand.pred some, some, more;",
            "vote.sync.ballot.b32 other, some, 0xffffffff;\npopc.b32 other, other;",
            "setp.lt.u32 some, other, need;\nselp.b32 other, 1, 0, some;",
            "mov.u32 at, chosen;\nmad.lo.u32 at, i, 4, at;\nsetp.eq.u32 some, lane, 0;",
            "@some st.shared.b32 [at], other;",
        ]
    lines += [
        "ranked:\nbar.sync 0;\nsetp.eq.u32 some, alive, 0;\n@some bra place;",
        "mov.u32 at, chosen;\nmad.lo.u32 at, slot, 4, at;",
    ]
    for j in range(n):
        lines += [
            f"and.b32 other, alive, {1 << j};\nsetp.eq.u32 some, other, 0;\n@some bra known{j};",
            "ld.shared.b32 other, [at];\nadd.u32 at, at, 4;\nsetp.ne.u32 some, other, 0;",
            f"@some or.b32 taken, taken, {1 << j};\nknown{j}:",
        ]
    return lines


@triton.constexpr_function
def _marked(n):
    """The same number, 0, for all that are taken."""
    return _or_none(n, ["0"] * n)


@triton.constexpr_function
def _numbered(n):
    """A warp's numbers follow each other, so that its stores lie together."""
    lines = []
    for start in range(0, n, 4):
        word = f"hits{start // 4}"
        # Four bits, spread over the bytes of a word.
        lines.append(
            f"shr.u32 {word}, taken, {start};\nand.b32 {word}, {word}, 15;\n"
            f"mul.lo.u32 {word}, {word}, 0x204081;\nand.b32 {word}, {word}, 0x01010101;"
        )
    numbers = [f"digit{j}" for j in range(n)]
    return [*lines, *_claimed(numbers), *_or_none(n, numbers)]


@triton.constexpr_function
def _or_none(n, numbers):
    """The results: the numbers of those that are taken, -1 for others."""
    lines = []
    for j in range(n):
        lines.append(
            f"and.b32 other, taken, {1 << j};\nsetp.ne.u32 some, other, 0;\n"
            f"selp.b32 ${j}, {numbers[j]}, -1, some;"
        )
    return lines


@triton.constexpr_function
def claim_code(n, space):
    """A number of its own for each hit from a counter in memory, a warp at a time.

    space: "global", or "shared": then the address is one of `counter_code`.

    Operands: n numbers (out), n hits (0 or 1), n times the counter's address.
    """
    lines = [
        "{\n.reg .b32 first, hits, below, other, lane;\n.reg .pred some;\nmov.u32 lane, %laneid;",
        f"mov.b32 hits, ${n};",
        *(f"add.u32 hits, hits, ${n + j};" for j in range(1, n)),
        "mov.b32 below, hits;",
        *_scanned(["below"]),
        "sub.u32 hits, below, hits;\nshfl.sync.idx.b32 below, below, 31, 31, 0xffffffff;",
        "mov.b32 first, 0;\nsetp.eq.u32 some, lane, 0;\nsetp.ne.and.u32 some, below, 0, some;",
        f"@some atom.{space}.add.u32 first, [${2 * n}], below;",
        "shfl.sync.idx.b32 first, first, 0, 31, 0xffffffff;\nadd.u32 $0, first, hits;",
        *(f"add.u32 ${j}, ${j - 1}, ${n + j - 1};" for j in range(1, n)),
        "}",
    ]
    return "\n".join(lines)


@triton.constexpr_function
def counter_code():
    """A counter in shared memory, 0 at first, for all that follows in the program.

    Operands: its address (out), and one that is not looked at.
    """
    return (
        "{\n.shared .b32 claims[1];\n.reg .b32 at, thread;\n.reg .pred some;\n"
        "mov.u32 at, claims;\nmov.u32 thread, %tid.x;\nsetp.eq.u32 some, thread, 0;\n"
        "@some st.shared.b32 [at], 0;\nbar.sync 0;\nmov.b32 $0, at;\n}"
    )


@triton.constexpr_function
def count_code():
    """What such a counter came to; it begins at 0 again. Operands: that (out), its address."""
    return (
        "{\n.reg .b32 thread;\n.reg .pred some;\n"
        "mov.u32 thread, %tid.x;\nsetp.eq.u32 some, thread, 0;\nbar.sync 0;\n"
        "ld.shared.b32 $0, [$1];\nbar.sync 0;\n@some st.shared.b32 [$1], 0;\nbar.sync 0;\n}"
    )


@triton.constexpr_function
def _claimed(numbers):
    """Numbers for a warp's hits from the counter behind `counter`, which goes up by as many.

    Byte j of `hits<i>` is 1 where a thread's value 4 i + j is a hit. Of the four, the first of all
    lanes come first. numbers: the registers that get them.
    """
    words = [f"{i}" for i in range((len(numbers) + 3) // 4)]
    lines = [f"mov.b32 below{i}, hits{i};" for i in words]
    lines += _scanned([f"below{i}" for i in words])
    lines.append("mov.b32 total, 0;\nmov.b32 first, 0;")
    for i in words:
        lines.append(
            f"shfl.sync.idx.b32 sums{i}, below{i}, 31, 31, 0xffffffff;\n"
            f"sub.u32 below{i}, below{i}, hits{i};\n"
            f"mad.lo.u32 below{i}, sums{i}, 0x01010100, below{i};\n"
            f"mul.lo.u32 other, sums{i}, 0x01010101;\nshr.u32 other, other, 24;\n"
            f"mov.b32 sums{i}, total;\nadd.u32 total, total, other;"
        )
    lines += [
        "setp.eq.u32 some, lane, 0;\nsetp.ne.and.u32 some, total, 0, some;",
        "@some atom.shared.add.u32 first, [counter+4], total;",
        "shfl.sync.idx.b32 first, first, 0, 31, 0xffffffff;",
    ]
    for i in words:
        lines.append(f"add.u32 sums{i}, sums{i}, first;")
    for j, number in enumerate(numbers):
        lines.append(
            f"prmt.b32 other, below{j // 4}, 0, {0x4440 + j % 4};\n"
            f"add.u32 {number}, sums{j // 4}, other;"
        )
    return lines


@triton.constexpr_function
def _scanned(names):
    """Sums over a warp's lanes up to each, itself included, in place of what each has."""
    lines = []
    for step in (1, 2, 4, 8, 16):
        for name in names:
            lines.append(
                f"shfl.sync.up.b32 other|some, {name}, {step}, 0, 0xffffffff;\n"
                f"@some add.u32 {name}, {name}, other;"
            )
    return lines


@triton.constexpr_function
def operands(n, kinds):
    """Constraints of n results and n operands of each of `kinds`."""
    return ",".join(["=&r"] * n + [kind for kind in kinds for _ in range(n)])
