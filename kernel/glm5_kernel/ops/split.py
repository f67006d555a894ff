"""The kernel of sparse MLA attention.

Every program gathers its share of the KV tiles that tokens chose, and works on up to 16 query heads
with them. A gathered tile serves as K and as V.

The latent dims are worked on in groups of 128, one tensor each. That keeps the gather's addresses
few (a thread's copies in a row share one), gives independent chains of matrix instructions, and in
fp8_ds_mla makes a group the unit of a scale: scores and probabilities are scaled, never the KV
values, which are widened from e4m3 to fp16 exactly, in the registers that feed the tensor cores.

Names: `i_` a program or loop index, `p_` a pointer, `b_` a block in registers, `o_` offsets, `m_` a
mask, `n_` a number of things, `s_` a stride in elements.
"""
# Triton kernels: constexpr arguments are upper case, tensors have no Python type, and tuples must
# grow by concatenation.
# ruff: noqa: N803, N806, ANN001, ANN201, ANN202, RUF005, SIM108
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found, assignment, misc"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from glm5_kernel.ops.portable import IN_INTERPRETER, LN2, dot, narrow

# Two words of four e4m3 values each, of neighbouring KV slots (or neighbouring words of a slot).
# Byte j of both becomes one register of two fp16: what a matrix instruction's operand holds.
WIDEN_NATIVE = tl.constexpr("""
{
  .reg .b32 low, high;
  .reg .b16 b0, b1, b2, b3;
  prmt.b32 low, $4, $5, 0x5140;
  prmt.b32 high, $4, $5, 0x7362;
  mov.b32 {b0, b1}, low;
  mov.b32 {b2, b3}, high;
  cvt.rn.f16x2.e4m3x2 $0, b0;
  cvt.rn.f16x2.e4m3x2 $1, b1;
  cvt.rn.f16x2.e4m3x2 $2, b2;
  cvt.rn.f16x2.e4m3x2 $3, b3;
}
""")


def _widen_by_bits() -> str:
    """The same for capability 8.0 and 8.6, which have no such conversion.

    With its exponent and mantissa moved one bit down from the high byte, an e4m3 value reads as an
    fp16 that is 2^8 times too small (the biases are 7 and 15), subnormals included.
    """
    steps = [
        f"""
  prmt.b32 byte, $4, $5, {0x0004 | j << 4 | (4 + j) << 12:#06x};
  and.b32 byte, byte, 0xff00ff00;
  shr.u32 rest, byte, 1;
  and.b32 rest, rest, 0x3f803f80;
  lop3.b32 rest, byte, 0x80008000, rest, 0xea;
  mul.f16x2 ${j}, rest, factor;"""
        for j in range(4)
    ]
    body = "".join(steps)
    return f"{{\n  .reg .b32 byte, rest, factor;\n  mov.b32 factor, 0x5c005c00;{body}\n}}"


WIDEN_BY_BITS = tl.constexpr(_widen_by_bits())


@triton.jit
def _e4m3_byte(b_word, J: tl.constexpr):
    b_byte = ((b_word >> (8 * J)) & 0xFF).to(tl.uint8)
    return b_byte.to(tl.float8e4nv, bitcast=True).to(tl.float16)


@triton.jit
def _widen(b_word, NATIVE: tl.constexpr):
    """int32 words of four e4m3 values -> four fp16 tensors of the same shape, byte 0 first."""
    if IN_INTERPRETER:
        return (
            _e4m3_byte(b_word, 0),
            _e4m3_byte(b_word, 1),
            _e4m3_byte(b_word, 2),
            _e4m3_byte(b_word, 3),
        )
    code: tl.constexpr = WIDEN_NATIVE if NATIVE else WIDEN_BY_BITS
    dtypes: tl.constexpr = (tl.float16, tl.float16, tl.float16, tl.float16)
    return tl.inline_asm_elementwise(code, "=r,=r,=r,=r,r,r", [b_word], dtypes, True, 2)


@triton.jit
def _by_byte(b_q):
    """[HB, 128] -> four [HB, 32], the columns that lie in byte 0, 1, 2, 3 of a word."""
    b_02, b_13 = tl.split(b_q.reshape(b_q.shape[0], b_q.shape[1] // 4, 2, 2))
    b_0, b_2 = tl.split(b_02)
    b_1, b_3 = tl.split(b_13)
    return b_0, b_1, b_2, b_3


@triton.jit
def _from_bytes(b_0, b_1, b_2, b_3):
    """The inverse of `_by_byte`."""
    b_all = tl.join(tl.join(b_0, b_2), tl.join(b_1, b_3))
    return b_all.reshape(b_0.shape[0], b_0.shape[1] * 4)


@triton.jit
def _chosen(p_index, start, end, o_n):
    return tl.load(p_index + start + o_n, mask=start + o_n < end, other=-1)


@triton.jit
def _slot(p_table, b_position, n_pages, n_blocks, BLOCK: tl.constexpr):
    """Slots of request-local positions (block times BLOCK plus the offset in it), −1 for none."""
    b_page = b_position // BLOCK
    # Division truncates: −1 would lie on page 0.
    ok = (b_position >= 0) & (b_page.to(tl.uint32) < n_pages.to(tl.uint32))
    b_block = tl.load(p_table + b_page, mask=ok, other=-1)
    known = b_block.to(tl.uint32, bitcast=True) < n_blocks.to(tl.uint32)
    return tl.where(known, b_block * BLOCK + b_position % BLOCK, -1)


@triton.jit
def _power_of_two(b_amax):
    """2^e and 2^-e with amax * 2^-e in [1, 2), for normal amax; clamped elsewhere."""
    e = tl.minimum(tl.maximum(b_amax.to(tl.int32, bitcast=True) >> 23, 1), 253)
    return (e << 23).to(tl.float32, bitcast=True), ((254 - e) << 23).to(tl.float32, bitcast=True)


INTEGERS = [
    "n_slots",
    "n_requests",
    "n_pages",
    "topk",
    "n_heads",
    "n_units",
    "n_all_units",
    "share",
    "n_parts",
    "s_q_token",
    "s_q_head",
    "s_qr_token",
    "s_qr_head",
    "s_block",
    "s_slot",
    "s_index",
    "s_table",
]


@triton.jit
def _length(p_length, i_t, topk, USE_LENGTH: tl.constexpr):
    """How many of a token's indices count."""
    if USE_LENGTH:
        return tl.minimum(tl.maximum(tl.load(p_length + i_t), 0), topk)
    return topk


@triton.jit
def _attend(
    i_t,
    i_h,
    i_part,
    first,
    last,
    p_q,
    p_q_rope,
    p_kv,
    p_index,
    length,
    p_table,
    p_request,
    p_out,
    p_lse,
    sm_scale_log2,
    n_slots,
    n_requests,
    n_pages,
    n_heads,
    n_parts,
    s_q_token,
    s_q_head,
    s_qr_token,
    s_qr_head,
    s_block,
    s_slot,
    s_index,
    s_table,
    D: tl.constexpr,
    R: tl.constexpr,
    HB: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    FLAT: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    USE_TABLE: tl.constexpr,
    Q_ALIGN: tl.constexpr,
    KV_ALIGN: tl.constexpr,
):
    """One token's KV tiles [first, last), for one tile of query heads: part `i_part` of it."""
    G: tl.constexpr = D // 128  # groups
    NB: tl.constexpr = 4 if FP8 else 1  # tensors a group is held in, one per byte of a word
    C: tl.constexpr = 128 // NB
    o_h = i_h * HB + tl.arange(0, HB)
    o_n = tl.arange(0, BN)
    o_c = tl.arange(0, C)
    o_g = tl.arange(0, 128)
    m_h = o_h < n_heads

    # The KV slots: [start, end) of the token's list.
    start = first * BN
    end = tl.minimum(last * BN, length)
    p_row = p_index + i_t * s_index
    # What the next tile gathers is loaded one tile ahead and used raw, else its latency shows.
    b_next = _chosen(p_row, start, end, o_n)
    b_after = b_next
    if USE_TABLE:
        request = tl.load(p_request + i_t)
        known = (request >= 0) & (request < n_requests)
        p_pages = p_table + tl.where(known, request, 0).to(tl.int64) * s_table
        pages = tl.where(known, n_pages, 0)
        b_after = _chosen(p_row, start + BN, end, o_n)
        b_next = _slot(p_pages, b_next, pages, n_slots // BLOCK, BLOCK)

    # Queries: per group [HB, 128], and [HB, R].
    p_qt = p_q + tl.multiple_of(i_t * s_q_token + o_h.to(tl.int64) * s_q_head, Q_ALIGN)
    b_q = ()
    for g in tl.static_range(G):
        p_qg = p_qt[:, None] + g * 128 + o_g[None, :]
        b_q = b_q + (tl.load(p_qg, mask=m_h[:, None], other=0.0),)
    if R:
        o_r = tl.arange(0, R)
        p_rt = p_q_rope + tl.multiple_of(i_t * s_qr_token + o_h.to(tl.int64) * s_qr_head, Q_ALIGN)
        b_qr = tl.load(p_rt[:, None] + o_r[None, :], mask=m_h[:, None], other=0.0)
    # e4m3 is exact in fp16 and widened to it, so the queries are fp16 too. A bf16 query is exact
    # there within 2^-14 of its head's largest, once a power of two has brought that near one.
    SCALE_Q: tl.constexpr = FP8 and p_q.dtype.element_ty == tl.bfloat16
    if FP8:
        b_up = tl.zeros([HB], tl.float32)
        b_down = tl.full([HB], 1.0, tl.float32)
        if SCALE_Q:
            b_large = tl.abs(b_q[0])
            for g in tl.static_range(1, G):
                b_large = tl.maximum(b_large, tl.abs(b_q[g]))
            b_up, b_down = _power_of_two(tl.max(b_large.to(tl.float32), 1))
        b_bytes = ()
        for g in tl.static_range(G):
            b_bytes = b_bytes + _by_byte((b_q[g].to(tl.float32) * b_down[:, None]).to(tl.float16))
        b_q = b_bytes

    b_max = tl.full([HB], float("-inf"), tl.float32)
    # Summed over its columns once, at the end: a sum across warps less in every tile.
    b_sum = tl.zeros([HB, BN], tl.float32)
    b_acc = ()
    for _ in tl.static_range(G * NB):
        b_acc = b_acc + (tl.zeros([HB, C], tl.float32),)

    for n in range(start, end, BN):
        # Where the slots lie, in elements: [BN].
        b_slot = b_next
        if USE_TABLE:
            b_next = _slot(p_pages, b_after, pages, n_slots // BLOCK, BLOCK)
            b_after = _chosen(p_row, n + 2 * BN, end, o_n)
        else:
            b_next = _chosen(p_row, n + BN, end, o_n)
        if USE_TABLE:  # known to lie in the cache, or −1
            ok = b_slot >= 0
        else:
            ok = b_slot.to(tl.uint32, bitcast=True) < n_slots.to(tl.uint32)
        if FLAT:
            b_off = b_slot.to(tl.int64) * s_slot
        else:
            b_off = (b_slot // BLOCK).to(tl.int64) * s_block
            b_off += (b_slot % BLOCK).to(tl.int64) * s_slot
        p_slot = p_kv + tl.multiple_of(b_off, KV_ALIGN)

        # KV: per group [BN, 128] (fp8: four of [BN, 32] and a scale), and [BN, R].
        b_k = ()
        b_scale = ()
        for g in tl.static_range(G):
            if FP8:
                p_word = p_slot[:, None].to(tl.pointer_type(tl.int32)) + g * C + o_c[None, :]
                b_k = b_k + _widen(tl.load(p_word, mask=ok[:, None], other=0), NATIVE)
                p_scale = (p_slot + D).to(tl.pointer_type(tl.float32)) + g
                b_scale = b_scale + (tl.load(p_scale, mask=ok, other=0.0),)
            else:
                p_k = p_slot[:, None] + g * 128 + o_c[None, :]
                b_k = b_k + (tl.load(p_k, mask=ok[:, None], other=0.0),)

        # Scores, base 2: [HB, BN]. The groups are independent chains of matrix instructions.
        b_s = tl.zeros([HB, BN], tl.float32)
        for g in tl.static_range(G):
            b_part = tl.zeros([HB, BN], tl.float32)
            for j in tl.static_range(g * NB, g * NB + NB):
                b_part = dot(b_q[j], tl.trans(b_k[j]), b_part)
            if FP8:
                b_part = b_part * b_scale[g][None, :]
            b_s += b_part
        if SCALE_Q:
            b_s = b_s * b_up[:, None]
        if R:
            if FP8:
                p_kr = (p_slot + D + D // 32).to(tl.pointer_type(tl.bfloat16))
            else:
                p_kr = p_slot + D
            b_kr = tl.load(p_kr[:, None] + o_r[None, :], mask=ok[:, None], other=0.0)
            b_part = tl.zeros([HB, BN], tl.float32)
            b_s += dot(b_qr, tl.trans(b_kr.to(b_qr.dtype)), b_part)
        b_s = tl.where(ok[None, :], b_s * sm_scale_log2, float("-inf"))

        # Online softmax. In fp8 the maximum is that of probability times scale, so that what is
        # rounded to fp16 below lies in [0, 1] whatever the scales are.
        b_top = b_s
        if FP8:
            b_largest = tl.abs(b_scale[0])
            for g in tl.static_range(1, G):
                b_largest = tl.maximum(b_largest, tl.abs(b_scale[g]))
            b_top = b_s + tl.log2(tl.maximum(b_largest, 1e-18))[None, :]
        b_max_new = tl.maximum(b_max, tl.max(b_top, 1))
        b_base = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_decay = tl.exp2(b_max - b_base)
        b_sum = b_sum * b_decay[:, None] + b_p
        b_max = b_max_new

        b_acc_new = ()
        for g in tl.static_range(G):
            b_pg = b_p
            if FP8:
                b_pg = b_p * b_scale[g][None, :]
            b_pg = narrow(b_pg, b_k[0].dtype)
            for j in tl.static_range(g * NB, g * NB + NB):
                b_acc_new = b_acc_new + (dot(b_pg, b_k[j], b_acc[j] * b_decay[:, None]),)
        b_acc = b_acc_new

    # Without a token the sum is zero, also where the queries are not finite; the maximum would not
    # tell such a row from one of NaN scores, which stay NaN.
    b_total = tl.sum(b_sum, 1)
    empty = b_total == 0.0
    b_total = tl.where(empty, 1.0, b_total)
    b_share = (1.0 / b_total)[:, None]
    o_row = (i_t * n_heads + o_h) * n_parts + i_part
    for g in tl.static_range(G):
        # Narrowed before the bytes are joined, while it lies as the matrix instructions left it.
        b_o = ()
        for j in tl.static_range(g * NB, g * NB + NB):
            b_og = tl.where(empty[:, None], 0.0, b_acc[j] * b_share)
            b_o = b_o + (narrow(b_og, p_out.dtype.element_ty),)
        b_row = _from_bytes(b_o[0], b_o[1], b_o[2], b_o[3]) if FP8 else b_o[0]
        p_o = p_out + o_row[:, None] * D + g * 128 + o_g[None, :]
        tl.store(p_o, b_row, mask=m_h[:, None])
    b_lse = tl.where(empty, float("-inf"), b_max * LN2 + tl.log(b_total))
    tl.store(p_lse + o_row, b_lse, mask=m_h)


# No integer is specialised: a new batch, pool or table size must not compile anything. Nor does
# what is read value by value depend on where it begins: a batch may be part of a larger one.
@triton.jit(
    do_not_specialize=INTEGERS,
    do_not_specialize_on_alignment=["p_index", "p_length", "p_table", "p_request"],
)
def split_kernel(
    p_q,
    p_q_rope,
    p_kv,
    p_index,
    p_length,
    p_table,
    p_request,
    p_out,
    p_lse,
    sm_scale_log2,
    n_slots,
    n_requests,
    n_pages,
    topk,
    n_heads,
    n_units,
    n_all_units,
    share,
    n_parts,
    s_q_token,
    s_q_head,
    s_qr_token,
    s_qr_head,
    s_block,
    s_slot,
    s_index,
    s_table,
    D: tl.constexpr,
    R: tl.constexpr,
    HB: tl.constexpr,
    BN: tl.constexpr,
    BLOCK: tl.constexpr,
    FLAT: tl.constexpr,
    FP8: tl.constexpr,
    NATIVE: tl.constexpr,
    USE_TABLE: tl.constexpr,
    USE_LENGTH: tl.constexpr,
    Q_ALIGN: tl.constexpr,
    KV_ALIGN: tl.constexpr,
    SPAN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Works on `share` KV tiles of the sequence that all tokens' tiles form (`configs.Plan`).

    SPAN: a share may end in one token and begin in another. Without it the code is straight, which
    takes fewer registers; and where a token has fewer KV slots than the top-k, its programs share
    those out evenly.
    """
    n_head_tiles = tl.cdiv(n_heads, HB)
    i_h = tl.program_id(0) % n_head_tiles
    i_p = tl.program_id(0) // n_head_tiles
    if PDL:
        gdc_wait()
    unit = i_p * share
    if SPAN:
        stop = tl.minimum(unit + share, n_all_units)
        while unit < stop:
            i_t = unit // n_units
            first = unit - i_t * n_units
            last = tl.minimum(first + stop - unit, n_units)
            unit += last - first
            i_part = i_p - (i_t * n_units) // share
            length = _length(p_length, i_t, topk, USE_LENGTH)
            # fmt: off
            _attend(
                i_t.to(tl.int64), i_h, i_part, first, last,
                p_q, p_q_rope, p_kv, p_index, length, p_table, p_request, p_out, p_lse,
                sm_scale_log2, n_slots, n_requests, n_pages, n_heads, n_parts, s_q_token,
                s_q_head, s_qr_token, s_qr_head, s_block, s_slot, s_index, s_table, D, R, HB, BN,
                BLOCK, FLAT, FP8, NATIVE, USE_TABLE, Q_ALIGN, KV_ALIGN,
            )
            # fmt: on
    else:
        i_t = unit // n_units
        i_part = (unit - i_t * n_units) // share
        length = _length(p_length, i_t, topk, USE_LENGTH)
        if USE_LENGTH:
            share = tl.cdiv(tl.cdiv(length, BN), n_parts)
        first = i_part * share
        # fmt: off
        _attend(
            i_t.to(tl.int64), i_h, i_part, first, first + share,
            p_q, p_q_rope, p_kv, p_index, length, p_table, p_request, p_out, p_lse,
            sm_scale_log2, n_slots, n_requests, n_pages, n_heads, n_parts, s_q_token,
            s_q_head, s_qr_token, s_qr_head, s_block, s_slot, s_index, s_table, D, R, HB, BN,
            BLOCK, FLAT, FP8, NATIVE, USE_TABLE, Q_ALIGN, KV_ALIGN,
        )
        # fmt: on


def signature(q_dtype: str, kv_dtype: str) -> dict[str, str]:
    """Triton types of `split_kernel`'s arguments for compiling it ahead of time."""
    pointers = {
        "p_q": f"*{q_dtype}",
        "p_q_rope": f"*{q_dtype}",
        "p_kv": f"*{kv_dtype}",
        "p_out": f"*{q_dtype}",
        "p_lse": "*fp32",
    }
    integers = dict.fromkeys(("p_index", "p_length", "p_table", "p_request"), "*i32")
    scalars = {"sm_scale_log2": "fp32"} | dict.fromkeys(INTEGERS, "i32")
    return pointers | integers | scalars
