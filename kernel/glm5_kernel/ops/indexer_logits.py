"""The DSA indexer's scores: for a query token and a cached one, Σ_h w_h · relu(q_h · k).

The indexer of DeepSeek V3.2 and GLM-5. q and k are e4m3; a key has one float32 scale, the scales of
a query and of the softmax are folded into its weights. `paged_mqa_logits` reads keys from vLLM's
paged cache (decode), `mqa_logits` from a plain tensor (prefill).

Names: `i_` a program or loop index, `p_` a pointer, `b_` a block in registers, `o_` offsets, `m_` a
mask, `n_` a number of things, `s_` a stride in elements.
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001, ANN201, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from glm5_kernel.ops.checks import (
    INTERPRET,
    check_contiguous,
    check_device,
    check_dtype,
    check_same_device,
    check_shape,
    check_words,
    require,
)
from glm5_kernel.ops.forms import once_per_form
from glm5_kernel.ops.indexer_configs import (
    PREFILL,
    PagedConfig,
    PrefillConfig,
    paged_config,
    paged_parts,
)
from glm5_kernel.ops.launch import Launch, View, shared_step
from glm5_kernel.ops.portable import IN_INTERPRETER
from glm5_kernel.ops.sparse_mla import device_table, supports_pdl

PAGE = 64
"""Tokens of a block of the cache."""
PAGE_TOKENS = tl.constexpr(PAGE)


@triton.jit
def _dot(b_k, b_q):
    """[BN, D], [NQ, D] e4m3 -> [BN, NQ] float32."""
    if IN_INTERPRETER:  # bytes there
        b_k = b_k.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        b_q = b_q.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return tl.dot(b_k, tl.trans(b_q), out_dtype=tl.float32)


@triton.jit
def _sum_heads(b_s, b_w, NJ: tl.constexpr, HB: tl.constexpr):
    """[BN, NJ * HB] dot products, [NJ * HB] weights -> [BN, NJ], twice the score."""
    # x + |x| is 2 relu(x), and takes half as long as a maximum.
    b_s = (b_s + tl.abs(b_s)) * b_w[None, :]
    return tl.sum(tl.reshape(b_s, (b_s.shape[0], NJ, HB)), 2)


@triton.jit
def _page_of(p_table, o_n, n_pages, end):
    """The block of each token of a tile, −1 for none."""
    i_page = o_n // PAGE_TOKENS
    return tl.load(p_table + i_page, mask=(o_n < end) & (i_page < n_pages), other=-1)


PAGED_ARGUMENTS = [
    "n_requests", "next_n", "n_heads", "n_blocks", "n_pages", "max_context", "n_parts",
    "s_q_request", "s_q_token", "s_q_head", "s_block", "s_weight", "s_length", "s_length_next",
    "s_table", "s_out",
]  # fmt: skip


# Lengths and tables may begin anywhere in those of a larger batch: nothing is compiled for it.
@triton.jit(
    do_not_specialize=PAGED_ARGUMENTS, do_not_specialize_on_alignment=["p_length", "p_table"]
)
def paged_kernel(
    p_q, p_kv, p_weight, p_length, p_table, p_out,
    n_requests, next_n, n_heads, n_blocks, n_pages, max_context, n_parts,
    s_q_request, s_q_token, s_q_head, s_block, s_weight, s_length, s_length_next, s_table, s_out,
    D: tl.constexpr,
    HB: tl.constexpr,
    NJ: tl.constexpr,
    BN: tl.constexpr,
    LAST_ONLY: tl.constexpr,
    Q_ALIGN: tl.constexpr,
    KV_ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Every `n_parts`-th tile of a request's tokens, for NJ of its query tokens.

    LAST_ONLY: `p_length` holds the length for a request's last query token.
    """
    i_b = tl.program_id(0) % n_requests
    i_part = tl.program_id(0) // n_requests
    i_j = tl.program_id(1) * NJ
    o_n = tl.arange(0, BN)
    o_d = tl.arange(0, D)
    o_j = i_j + tl.arange(0, NJ)
    o_c = tl.arange(0, NJ * HB)
    o_cj = i_j + o_c // HB
    o_h = o_c % HB
    m_c = (o_cj < next_n) & (o_h < n_heads)
    if PDL:
        gdc_wait()

    # [NJ]
    p_len = p_length + i_b.to(tl.int64) * s_length
    if LAST_ONLY:
        b_end = tl.load(p_len) - (next_n - 1 - o_j)
    else:
        b_end = tl.load(p_len + o_j * s_length_next, mask=o_j < next_n, other=0)
    b_end = tl.where(o_j < next_n, tl.minimum(b_end, max_context), 0)
    p_pages = p_table + i_b.to(tl.int64) * s_table
    end = tl.max(b_end, 0)
    first = i_part * BN
    if first < end:
        # Queries [NJ * HB, D] and their weights [NJ * HB].
        o_q = i_b.to(tl.int64) * s_q_request + o_cj.to(tl.int64) * s_q_token + o_h * s_q_head
        p_qs = p_q + tl.multiple_of(o_q, Q_ALIGN)[:, None] + o_d[None, :]
        b_q = tl.load(p_qs, mask=m_c[:, None], other=0.0)
        i_row = i_b.to(tl.int64) * next_n
        b_w = tl.load(p_weight + (i_row + o_cj) * s_weight + o_h, mask=m_c, other=0.0)
        p_outs = p_out + (i_row + o_j.to(tl.int64))[None, :] * s_out
        # Loaded a tile ahead, else its latency shows.
        b_next = _page_of(p_pages, first + o_n, n_pages, end)
        for n in tl.range(first, end, n_parts * BN, num_stages=STAGES):
            b_page = b_next
            b_next = _page_of(p_pages, n + n_parts * BN + o_n, n_pages, end)
            m_n = b_page.to(tl.uint32, bitcast=True) < n_blocks.to(tl.uint32)
            o_block = tl.multiple_of(b_page.to(tl.int64) * s_block, KV_ALIGN)
            o_in = o_n % PAGE_TOKENS
            # [BN, D] keys, and behind all keys of a block its scales.
            p_k = p_kv + o_block[:, None] + (o_in * D)[:, None] + o_d[None, :]
            b_k = tl.load(p_k, mask=m_n[:, None], other=0.0)
            p_scales = (p_kv + o_block + PAGE_TOKENS * D).to(tl.pointer_type(tl.float32))
            b_scale = tl.load(p_scales + o_in, mask=m_n, other=0.0)
            # [BN, NJ]
            b_s = _sum_heads(_dot(b_k, b_q), b_w, NJ, HB) * (0.5 * b_scale)[:, None]
            o_t = n + o_n
            tl.store(p_outs + o_t[:, None], b_s, mask=o_t[:, None] < b_end[None, :])


PREFILL_ARGUMENTS = [
    "n_rows", "n_keys", "n_heads", "s_q_token", "s_q_head", "s_k", "s_weight", "s_out",
]  # fmt: skip


@triton.jit(
    do_not_specialize=PREFILL_ARGUMENTS, do_not_specialize_on_alignment=["p_start", "p_end"]
)
def prefill_kernel(
    p_q, p_k, p_scale, p_weight, p_start, p_end, p_out,
    n_rows, n_keys, n_heads, s_q_token, s_q_head, s_k, s_weight, s_out,
    D: tl.constexpr,
    HB: tl.constexpr,
    NJ: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    Q_ALIGN: tl.constexpr,
    K_ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """BN keys for BM query tokens, NJ of them at a time."""
    n_key_tiles = tl.cdiv(n_keys, BN)
    i_n = (tl.program_id(0) % n_key_tiles) * BN
    i_m = (tl.program_id(0) // n_key_tiles) * BM
    o_n = i_n + tl.arange(0, BN)
    o_d = tl.arange(0, D)
    o_m = i_m + tl.arange(0, BM)
    o_c = tl.arange(0, NJ * HB)
    o_h = o_c % HB
    m_n = o_n < n_keys
    m_m = o_m < n_rows
    if PDL:
        gdc_wait()

    # The tokens, first to last, whose ranges meet these keys.
    b_start = tl.load(p_start + o_m, mask=m_m, other=0)
    b_end = tl.load(p_end + o_m, mask=m_m, other=0)
    m_meets = (b_start < b_end) & (b_start < i_n + BN) & (b_end > i_n)
    first = tl.min(tl.where(m_meets, o_m, n_rows), 0)
    last = tl.max(tl.where(m_meets, o_m, -1), 0)
    if first <= last:
        # Keys [BN, D] and their scales [BN].
        p_ks = p_k + tl.multiple_of(o_n.to(tl.int64) * s_k, K_ALIGN)[:, None] + o_d[None, :]
        b_k = tl.load(p_ks, mask=m_n[:, None], other=0.0)
        b_scale = 0.5 * tl.load(p_scale + o_n, mask=m_n, other=0.0)
        first = i_m + (first - i_m) // NJ * NJ
        o_next = first + o_c // HB
        m_next = (o_next < n_rows) & (o_h < n_heads)
        b_next = tl.load(p_weight + o_next.to(tl.int64) * s_weight + o_h, mask=m_next, other=0.0)
        for m in tl.range(first, last + 1, NJ, num_stages=STAGES):
            o_cm = m + o_c // HB
            m_c = (o_cm < n_rows) & (o_h < n_heads)
            # Queries [NJ * HB, D]; their weights, [NJ * HB], were loaded a step ahead.
            o_q = tl.multiple_of(o_cm.to(tl.int64) * s_q_token + o_h * s_q_head, Q_ALIGN)
            b_q = tl.load(p_q + o_q[:, None] + o_d[None, :], mask=m_c[:, None], other=0.0)
            b_w = b_next
            o_next = o_cm + NJ
            m_next = (o_next < n_rows) & (o_h < n_heads)
            b_next = tl.load(
                p_weight + o_next.to(tl.int64) * s_weight + o_h, mask=m_next, other=0.0
            )
            # [BN, NJ]
            b_s = _sum_heads(_dot(b_k, b_q), b_w, NJ, HB) * b_scale[:, None]
            o_row = m + tl.arange(0, NJ)
            p_outs = p_out + o_row.to(tl.int64)[None, :] * s_out + o_n[:, None]
            tl.store(p_outs, b_s, mask=m_n[:, None] & (o_row < n_rows)[None, :])


def paged_mqa_logits(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    *,
    max_context: int,
    out: Tensor | None = None,
    force_config: PagedConfig | None = None,
) -> Tensor:
    """The indexer's scores of each decoded token for the tokens before it, from the paged cache.

    What lies at or beyond a row's length is not written: `out` holds there what it held before,
    and nothing must read it. A page that the block table lacks, or that is no block of the cache,
    scores 0. Grids follow from shapes alone, so a captured CUDA graph stays valid.

    Args:
        q: [B, n, H, 128] e4m3: n tokens of each of B requests; H a power of two from 4 to 128.
        kv_cache: [blocks, 64, 132] or [blocks, 64, 1, 132] uint8: in a block first the e4m3 values
            of its 64 tokens, 128 bytes each, then their 64 float32 scales. Blocks may be any
            multiple of 4 bytes apart, and there may be more than 2^31 bytes.
        weights: [B * n, H] float32, with the scales of q and of the softmax in it; rows contiguous.
        context_lens: int32. [B]: the length for a request's last token, each one before it sees one
            token less; or [B, n]: each token's own (vLLM 0.26 gives these, with
            [b, j] = length_b − n + j + 1). Garbage in padded rows does no harm.
        block_tables: [B, pages] int32, rows contiguous: the block of each 64 tokens of a request.
        max_context: columns of the result.
        out: result [B * n, max_context] float32, rows contiguous.
        force_config: use this configuration; for measurements.

    Returns:
        [B * n, max_context] float32.

    Raises:
        ValueError: an argument has a shape, dtype, device or layout that is not allowed.
    """
    call = _paged_call(
        q, kv_cache, weights, context_lens, block_tables, max_context, out, force_config
    )
    check_words(kv_cache, (kv_cache.data_ptr(),), "blocks")
    if out is None:
        out = torch.empty(call.shape, dtype=torch.float32, device=q.device)
    if call.launch is not None:
        call.launch(
            _e4m3(q), _view(kv_cache), weights, context_lens, block_tables, out,
            Q_ALIGN=math.gcd(call.q_step, q.data_ptr()),
            KV_ALIGN=math.gcd(call.k_step, kv_cache.data_ptr()),
        )  # fmt: skip
    return out


def mqa_logits(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    *,
    out: Tensor | None = None,
    force_config: PrefillConfig | None = None,
) -> Tensor:
    """The indexer's scores of query tokens for keys, each token's for a range of them.

    Elements outside a row's range may or may not be written: nothing must read them. Tiles outside
    of every range cost next to nothing.

    Args:
        q: [M, H, 128] e4m3; H a power of two from 4 to 128.
        k: [N, 128] e4m3, rows contiguous.
        k_scale: [N] float32, contiguous.
        weights: [M, H] float32, with the scales of q and of the softmax in it; rows contiguous.
        starts, ends: [M] int32, contiguous: row m's keys are k[starts[m] : ends[m]].
        out: result [M, N] float32, rows contiguous.
        force_config: use this configuration; for measurements.

    Returns:
        [M, N] float32.

    Raises:
        ValueError: an argument has a shape, dtype, device or layout that is not allowed.
    """
    call = _prefill_call(q, k, k_scale, weights, starts, ends, out, force_config)
    if out is None:
        out = torch.empty(call.shape, dtype=torch.float32, device=q.device)
    if call.launch is not None:
        call.launch(
            _e4m3(q), _e4m3(k), k_scale, weights, starts, ends, out,
            Q_ALIGN=math.gcd(call.q_step, q.data_ptr()),
            K_ALIGN=math.gcd(call.k_step, k.data_ptr()),
        )  # fmt: skip
    return out


@dataclass(frozen=True)
class _Call:
    """What follows from the form of a call.

    Attributes:
        shape: of the result.
        launch: nothing is launched for an empty one.
        q_step, k_step: bytes, at most 16, that the distances between queries, and between keys or
            blocks, are multiples of.
    """

    shape: tuple[int, int]
    launch: Launch | None = None
    q_step: int = 16
    k_step: int = 16


@once_per_form
def _paged_call(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    max_context: int,
    out: Tensor | None,
    force_config: PagedConfig | None,
) -> _Call:
    """Check all but addresses; see `paged_mqa_logits`."""
    batch, next_n, heads, dim = _check_q("q", q, 4)
    _check_cache(kv_cache, dim, q.device)
    steps, last_only = _check_lengths(context_lens, batch, next_n)
    require(block_tables.ndim == 2 and block_tables.shape[0] == batch, "block_tables",
            f"shape {list(block_tables.shape)}", f"[{batch}, pages]")  # fmt: skip
    require(block_tables.stride(1) == 1 or block_tables.shape[1] <= 1, "block_tables",
            f"strides {block_tables.stride()}", "contiguous rows")  # fmt: skip
    for name, value in (("context_lens", context_lens), ("block_tables", block_tables)):
        check_dtype(name, value, (torch.int32,))
        check_same_device(name, value, q.device)
    shape = batch * next_n, max_context
    _check_weights(weights, shape[0], heads, q.device)
    s_out = _check_result(out, shape, q.device)
    if 0 in shape:
        return _Call(shape)
    arch, hardware = device_table(q.device)
    config = force_config or paged_config(arch, batch, max_context, hardware.processors)
    padded, group = _group(heads, next_n, config.columns)
    parts = paged_parts(config, batch, max_context, hardware.processors)
    launch = Launch(
        paged_kernel,
        (batch * parts, math.ceil(next_n / group)),
        (
            batch, next_n, heads, kv_cache.shape[0], block_tables.shape[1], max_context, parts,
            *q.stride()[:3], kv_cache.stride(0), weights.stride(0), *steps, block_tables.stride(0),
            s_out,
        ),
        {"D": dim, "HB": padded, "NJ": group, "BN": config.tile, "LAST_ONLY": last_only,
         "STAGES": config.stages},
        pdl=supports_pdl(q.device),
        num_warps=config.warps,
    )  # fmt: skip
    return _Call(shape, launch, shared_step(q, 3), shared_step(kv_cache, 1))


@once_per_form
def _prefill_call(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    out: Tensor | None,
    force_config: PrefillConfig | None,
) -> _Call:
    """Check all but addresses; see `mqa_logits`."""
    rows, heads, dim = _check_q("q", q, 3)
    keys = _check_keys(k, k_scale, dim, q.device)
    _check_weights(weights, rows, heads, q.device)
    for name, value in (("starts", starts), ("ends", ends)):
        check_shape(name, value, (rows,))
        check_dtype(name, value, (torch.int32,))
        check_contiguous(name, value)
        check_same_device(name, value, q.device)
    s_out = _check_result(out, (rows, keys), q.device)
    if 0 in (rows, keys):
        return _Call((rows, keys))
    config = force_config or PREFILL[device_table(q.device)[0]]
    padded, group = _group(heads, config.rows, config.columns)
    launch = Launch(
        prefill_kernel,
        (math.ceil(keys / config.tile) * math.ceil(rows / config.rows),),
        (rows, keys, heads, *q.stride()[:2], k.stride(0), weights.stride(0), s_out),
        {"D": dim, "HB": padded, "NJ": group, "BM": config.rows, "BN": config.tile,
         "STAGES": config.stages},
        pdl=supports_pdl(q.device),
        num_warps=config.warps,
    )  # fmt: skip
    return _Call((rows, keys), launch, shared_step(q, 2), shared_step(k, 1))


def _check_q(name: str, q: Tensor, ndim: int) -> tuple[int, ...]:
    shape = "[B, n, H, 128]" if ndim == 4 else "[M, H, 128]"
    require(q.ndim == ndim, name, f"{q.ndim} dims", f"{ndim}: {shape}")
    check_device(name, q)
    check_dtype(name, q, (torch.float8_e4m3fn,))
    heads, dim = q.shape[-2:]
    require(dim == 128, name, f"last dim {dim}", "128")
    require(heads in (4, 8, 16, 32, 64, 128), name, f"{heads} heads", "4, 8, 16, 32, 64 or 128")
    require(q.stride(-1) == 1, name, f"strides {q.stride()}", "a contiguous last dim")
    return tuple(q.shape)


def _check_cache(kv_cache: Tensor, dim: int, device: torch.device) -> None:
    name, width = "kv_cache", dim + 4
    check_dtype(name, kv_cache, (torch.uint8,))
    check_same_device(name, kv_cache, device)
    allowed = f"[blocks, {PAGE}, {width}] or [blocks, {PAGE}, 1, {width}]"
    shape = tuple(kv_cache.shape[1:])
    require(shape in ((PAGE, width), (PAGE, 1, width)), name, f"shape {list(kv_cache.shape)}",
            allowed)  # fmt: skip
    _, row, *_, last = kv_cache.stride()
    require((row, last) == (width, 1), name, f"strides {kv_cache.stride()}", "contiguous blocks")
    check_words(kv_cache, (kv_cache.stride(0),), "blocks")


def _check_keys(k: Tensor, k_scale: Tensor, dim: int, device: torch.device) -> int:
    require(k.ndim == 2 and k.shape[1] == dim, "k", f"shape {list(k.shape)}", f"[N, {dim}]")
    check_dtype("k", k, (torch.float8_e4m3fn,))
    require(k.stride(1) == 1, "k", f"strides {k.stride()}", "contiguous rows")
    check_shape("k_scale", k_scale, (k.shape[0],))
    check_dtype("k_scale", k_scale, (torch.float32,))
    check_contiguous("k_scale", k_scale)
    for name, value in (("k", k), ("k_scale", k_scale)):
        check_same_device(name, value, device)
    return k.shape[0]


def _check_lengths(context_lens: Tensor, batch: int, next_n: int) -> tuple[tuple[int, int], bool]:
    """Strides, and whether only the last token's length is given."""
    if context_lens.ndim == 2:
        check_shape("context_lens", context_lens, (batch, next_n))
        return (context_lens.stride(0), context_lens.stride(1)), False
    require(tuple(context_lens.shape) == (batch,), "context_lens",
            f"shape {list(context_lens.shape)}", f"[{batch}] or [{batch}, {next_n}]")  # fmt: skip
    return (context_lens.stride(0), 0), True


def _check_weights(weights: Tensor, rows: int, heads: int, device: torch.device) -> None:
    check_shape("weights", weights, (rows, heads))
    check_dtype("weights", weights, (torch.float32,))
    check_same_device("weights", weights, device)
    require(weights.stride(1) == 1, "weights", f"strides {weights.stride()}", "contiguous rows")


def _check_result(out: Tensor | None, shape: tuple[int, int], device: torch.device) -> int:
    """The distance between rows."""
    columns = shape[1]
    require(0 <= columns < 2**31, "max_context", str(columns), "0 to 2^31 - 1")
    if out is None:
        return columns
    check_shape("out", out, shape)
    check_dtype("out", out, (torch.float32,))
    check_same_device("out", out, device)
    require(out.stride(1) == 1 or columns <= 1, "out", f"strides {out.stride()}",
            "contiguous rows")  # fmt: skip
    return out.stride(0)


def _group(heads: int, tokens: int, columns: int) -> tuple[int, int]:
    """Heads after padding, and tokens that are worked on at a time (a power of two)."""
    padded = max(16, heads)
    return padded, min(1 << (tokens - 1).bit_length(), max(1, columns // padded))


def _e4m3(value: Tensor) -> Tensor:
    """As the kernel takes it: the interpreter wants bytes."""
    return value.view(torch.uint8) if INTERPRET else value


def _view(kv_cache: Tensor) -> View:
    """As the kernel takes it: the first bytes of a block are e4m3."""
    return View(kv_cache, torch.uint8 if INTERPRET else torch.float8_e4m3fn)
