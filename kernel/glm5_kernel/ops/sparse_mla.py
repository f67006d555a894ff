"""Sparse MLA attention: each query token attends to the KV slots that were chosen for it.

Arguments, checks and launches; `split` holds the kernel, `merge` joins what several programs found
for one token, `configs` says how the work is shared out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_kernel.ops.checks import (
    INTERPRET,
    check_aligned,
    check_contiguous,
    check_device,
    check_dtype,
    check_same_device,
    check_shape,
    check_words,
    check_workspace,
    require,
)
from glm5_kernel.ops.configs import Device, Kv, Plan, architecture, plan
from glm5_kernel.ops.forms import once_per_form
from glm5_kernel.ops.launch import Launch, View, shared_step
from glm5_kernel.ops.layouts import GROUP, Fp8Layout
from glm5_kernel.ops.merge import check_result, merge_launch
from glm5_kernel.ops.split import split_kernel

LOG2E = 1.4426950408889634


def sparse_mla(
    q: Tensor | tuple[Tensor, Tensor],
    kv_cache: Tensor,
    indices: Tensor,
    sm_scale: float,
    *,
    latent_dim: int = 512,
    rope_dim: int = 64,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    request_ids: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
    deterministic: bool = False,
    force_plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """MLA attention of each query token over the KV slots chosen for it.

    Args:
        q: [T, H, latent_dim + rope_dim] bf16 or fp16, or the pair ([T, H, latent_dim],
            [T, H, rope_dim]). H is 1 to 128; the last dim is contiguous.
        kv_cache: [blocks, block size, latent_dim + rope_dim] in q's dtype, or fp8_ds_mla:
            [blocks, block size, row bytes] uint8 (`layouts.Fp8Layout`). Blocks may be any distance
            apart, and there may be more than 2^31 elements, but with `block_table` fewer slots.
        indices: [T, K] int32, K ≥ 1. Physical slots (block × block size + offset), or, with
            `block_table`, positions within the token's request. Anything out of range, −1 first of
            all, is no token.
        sm_scale: factor of the scores, before the softmax.
        latent_dim: a multiple of 128, at most 512.
        rope_dim: 0, or a power of two from 16 to 128.
        lengths: [T] int32: only that many leading indices of a row count.
        block_table: [requests, pages] int32: physical block of each page of a request.
        request_ids: [T] int32: the request of each token; goes with `block_table`.
        out: result [T, H, latent_dim] in q's dtype, contiguous.
        lse: result [T, H] float32, contiguous.
        workspace: 1-D uint8 of at least `workspace_bytes`, 16-byte aligned; its content is
            overwritten and may be shared by calls on one stream.
        deterministic: bit-equal results for a row whatever the rest of the batch is.
        force_plan: use this configuration and number of splits; for measurements.

    Returns:
        out, and lse: the natural log of the sum of exp(score). A row without tokens has zeros
        and −inf.

    Raises:
        ValueError: an argument has a shape, dtype, device or layout that is not allowed.
    """
    call = _call(
        q, kv_cache, indices, sm_scale, latent_dim, rope_dim, lengths, block_table, request_ids,
        out, lse, workspace, deterministic, force_plan,
    )  # fmt: skip
    if kv_cache.dtype == torch.uint8:
        check_words(kv_cache, (kv_cache.data_ptr(),), "rows")
    q_latent, q_rope = _halves(q, latent_dim)
    out = q_latent.new_empty(*call.rows, latent_dim) if out is None else out
    lse = q_latent.new_empty(call.rows, dtype=torch.float32) if lse is None else lse
    if call.split is None:
        return out, lse
    parts: Tensor | View = out
    part_lses: Tensor | View = lse
    if call.merge is not None:
        parts, part_lses = _scratch(workspace, q_latent, *call.scratch)
    q_align = math.gcd(call.q_step, q_latent.data_ptr(), q_rope.data_ptr())
    kv_align = math.gcd(call.kv_step, kv_cache.data_ptr())
    call.split(
        q_latent,
        q_rope,
        kv_cache,
        indices,
        indices if lengths is None else lengths,
        indices if block_table is None else block_table,
        indices if request_ids is None else request_ids,
        parts,
        part_lses,
        Q_ALIGN=max(1, q_align // q_latent.element_size()),
        KV_ALIGN=max(1, kv_align // kv_cache.element_size()),
    )
    if call.merge is not None:
        call.merge(parts, part_lses, out, lse)
    return out, lse


def workspace_bytes(
    max_tokens: int,
    heads: int,
    topk: int,
    *,
    fp8: bool,
    latent_dim: int = 512,
    device: torch.device | str = "cuda",
    deterministic: bool | None = None,
) -> int:
    """Bytes of `workspace` that any call of up to `max_tokens` tokens needs on `device`.

    Args:
        deterministic: only calls that are (these need far more, since they split whatever the
            batch), or only calls that are not; without it, either.
    """
    arch, hardware = device_table(torch.device(device))
    kv: Kv = "fp8" if fp8 else "16bit"
    modes = (True, False) if deterministic is None else (deterministic,)
    plans = [
        (t, plan(arch, kv, t, heads, topk, hardware, deterministic=mode))
        for t in range(1, max_tokens + 1)
        for mode in modes
    ]
    return max((_partial_bytes(t, heads, p.parts, latent_dim) for t, p in plans), default=0)


@functools.lru_cache(maxsize=64)
def supports_pdl(device: torch.device) -> bool:
    """Whether a kernel may start while its predecessor still runs (capability 9.0 and newer)."""
    return not INTERPRET and torch.cuda.get_device_capability(device)[0] >= 9


@dataclass(frozen=True)
class _Call:
    """What follows from the form of a call.

    Attributes:
        rows: tokens and heads.
        split: nothing is launched without tokens.
        merge: where several programs work on one token.
        scratch: bytes of the partial outputs, and of these and their lses.
        q_step, kv_step: bytes, at most 16, that the distances between rows are multiples of.
    """

    rows: tuple[int, int]
    split: Launch | None = None
    merge: Launch | None = None
    scratch: tuple[int, int] = (0, 0)
    q_step: int = 16
    kv_step: int = 16


@once_per_form
def _call(
    q: Tensor | tuple[Tensor, Tensor],
    kv_cache: Tensor,
    indices: Tensor,
    sm_scale: float,
    latent_dim: int,
    rope_dim: int,
    lengths: Tensor | None,
    block_table: Tensor | None,
    request_ids: Tensor | None,
    out: Tensor | None,
    lse: Tensor | None,
    workspace: Tensor | None,
    deterministic: bool,
    force_plan: Plan | None,
) -> _Call:
    """Check all but addresses; see `sparse_mla`."""
    q_latent, q_rope = _queries(q, latent_dim, rope_dim)
    tokens, heads, _ = q_latent.shape
    device = q_latent.device
    _check_kv(kv_cache, q_latent, latent_dim, rope_dim)
    _check_indices(indices, tokens, device, lengths, block_table, request_ids)
    slots = kv_cache.shape[0] * kv_cache.shape[1]
    require(block_table is None or slots < 2**31, "kv_cache", f"{slots} slots", "fewer than 2^31")
    if out is not None:
        check_result("out", out, (tokens, heads, latent_dim), q_latent.dtype, device)
    if lse is not None:
        check_result("lse", lse, (tokens, heads), torch.float32, device)
    if tokens == 0:
        return _Call((tokens, heads))
    arch, hardware = device_table(device)
    chosen = force_plan or plan(
        arch, _kind(kv_cache), tokens, heads, indices.shape[1], hardware,
        deterministic=deterministic,
    )  # fmt: skip
    pdl = supports_pdl(device)
    needed = _partial_bytes(tokens, heads, chosen.parts, latent_dim)
    if needed and workspace is not None:
        check_workspace(workspace, needed, device)
    return _Call(
        (tokens, heads),
        _split(q_latent, q_rope, kv_cache, indices, sm_scale, lengths, block_table, chosen, pdl),
        _merge(tokens, heads, latent_dim, chosen, pdl),
        (2 * tokens * heads * chosen.parts * latent_dim, needed),
        math.gcd(shared_step(q_latent, 2), shared_step(q_rope, 2) if rope_dim else 16),
        shared_step(kv_cache, 2),
    )


def _halves(q: Tensor | tuple[Tensor, Tensor], latent_dim: int) -> tuple[Tensor, Tensor]:
    return (q[..., :latent_dim], q[..., latent_dim:]) if isinstance(q, Tensor) else q


def _queries(
    q: Tensor | tuple[Tensor, Tensor], latent_dim: int, rope_dim: int
) -> tuple[Tensor, Tensor]:
    require(
        0 < latent_dim <= 512 and latent_dim % GROUP == 0,
        "latent_dim", str(latent_dim), "128, 256, 384 or 512",
    )  # fmt: skip
    require(rope_dim in (0, 16, 32, 64, 128), "rope_dim", str(rope_dim), "0, 16, 32, 64 or 128")
    if isinstance(q, Tensor):
        require(q.ndim == 3, "q", f"{q.ndim} dims", "3: [T, H, dims]")
        check_shape("q", q, (*q.shape[:2], latent_dim + rope_dim))
    latent, rope = _halves(q, latent_dim)
    if not isinstance(q, Tensor):
        require(latent.ndim == 3, "q", f"{latent.ndim} dims", "3: [T, H, dims]")
        check_shape("q (latent)", latent, (*latent.shape[:2], latent_dim))
        check_shape("q (rope)", rope, (*latent.shape[:2], rope_dim))
    require(1 <= latent.shape[1] <= 128, "q", f"{latent.shape[1]} heads", "1 to 128 heads")
    for name, part in (("q", latent), ("q (rope)", rope)):
        check_device(name, part)
        check_dtype(name, part, (torch.bfloat16, torch.float16))
        require(part.dtype == latent.dtype, name, str(part.dtype), str(latent.dtype))
        require(part.stride(-1) == 1 or part.shape[-1] == 0, name, f"strides {part.stride()}",
                "a contiguous last dim")  # fmt: skip
        check_same_device(name, part, latent.device)
    return latent, rope


def _check_kv(kv_cache: Tensor, q: Tensor, latent_dim: int, rope_dim: int) -> None:
    name = "kv_cache"
    require(kv_cache.ndim == 3, name, f"{kv_cache.ndim} dims", "3: [blocks, block size, row]")
    check_same_device(name, kv_cache, q.device)
    check_dtype(name, kv_cache, (q.dtype, torch.uint8))
    require(kv_cache.stride(2) == 1, name, f"strides {kv_cache.stride()}", "a contiguous row")
    row = kv_cache.shape[2]
    if kv_cache.dtype == torch.uint8:
        least = Fp8Layout(latent_dim, rope_dim).row_bytes
        require(row >= least, name, f"rows of {row} bytes", f"at least {least}")
        check_words(kv_cache, kv_cache.stride()[:2], "rows")
    else:
        dims = latent_dim + rope_dim
        require(row == dims, name, f"rows of {row}", f"{dims} (latent_dim + rope_dim)")


def _check_indices(
    indices: Tensor,
    tokens: int,
    device: torch.device,
    lengths: Tensor | None,
    block_table: Tensor | None,
    request_ids: Tensor | None,
) -> None:
    require(indices.ndim == 2, "indices", f"{indices.ndim} dims", "2: [T, K]")
    require(indices.shape[1] >= 1, "indices", "no column", "at least one")
    check_shape("indices", indices, (tokens, indices.shape[1]))
    require(indices.stride(1) == 1, "indices", f"strides {indices.stride()}", "contiguous rows")
    together = (block_table is None) == (request_ids is None)
    require(together, "request_ids", "one of the two", "block_table and request_ids together")
    if block_table is not None and request_ids is not None:
        require(block_table.ndim == 2, "block_table", f"{block_table.ndim} dims", "2")
        require(block_table.stride(1) == 1, "block_table", f"strides {block_table.stride()}",
                "contiguous rows")  # fmt: skip
        check_shape("request_ids", request_ids, (tokens,))
        check_contiguous("request_ids", request_ids)
    if lengths is not None:
        check_shape("lengths", lengths, (tokens,))
        check_contiguous("lengths", lengths)
    named = {"indices": indices, "lengths": lengths, "block_table": block_table,
             "request_ids": request_ids}  # fmt: skip
    for name, value in named.items():
        if value is not None:
            check_dtype(name, value, (torch.int32,))
            check_same_device(name, value, device)


@functools.lru_cache(maxsize=64)
def device_table(device: torch.device) -> tuple[str, Device]:
    """The table that a device uses, and what its shares are cut for."""
    if INTERPRET:
        return "sm120", Device(processors=4, shared=102_400)
    found = torch.cuda.get_device_properties(device)
    hardware = Device(found.multi_processor_count, found.shared_memory_per_multiprocessor)
    return architecture((found.major, found.minor)), hardware


def _kind(kv_cache: Tensor) -> Kv:
    return "fp8" if kv_cache.dtype == torch.uint8 else "16bit"


def _partial_bytes(tokens: int, heads: int, parts: int, latent_dim: int) -> int:
    """A 16-bit output and a float32 lse per token, head and part; nothing for a single part."""
    return tokens * heads * parts * (2 * latent_dim + 4) if parts > 1 else 0


def _scratch(workspace: Tensor | None, q: Tensor, outs: int, needed: int) -> tuple[View, View]:
    """Partial outputs [T, H, parts, latent_dim] in q's dtype and lses [T, H, parts] float32."""
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8, device=q.device)
    check_aligned("workspace", workspace)
    return View(workspace, q.dtype, 0, outs), View(workspace, torch.float32, outs, needed)


def _split(
    q_latent: Tensor,
    q_rope: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    sm_scale: float,
    lengths: Tensor | None,
    block_table: Tensor | None,
    chosen: Plan,
    pdl: bool,
) -> Launch:
    tokens, heads, latent_dim = q_latent.shape
    blocks, block_size, _ = kv_cache.shape
    config = chosen.config
    table = indices if block_table is None else block_table
    scalars = (
        sm_scale * LOG2E,
        min(blocks * block_size, 2**31 - 1),
        *table.shape,
        indices.shape[1],
        heads,
        chosen.units,
        tokens * chosen.units,
        chosen.share,
        chosen.parts,
        *q_latent.stride()[:2],
        *q_rope.stride()[:2],
        *kv_cache.stride()[:2],
        indices.stride(0),
        table.stride(0),
    )
    constants = {
        "D": latent_dim,
        "R": q_rope.shape[-1],
        "HB": config.heads,
        "BN": config.tile,
        "BLOCK": block_size,
        "FLAT": kv_cache.stride(0) == block_size * kv_cache.stride(1),
        "FP8": kv_cache.dtype == torch.uint8,
        "NATIVE": _has_fp8_conversion(q_latent.device),
        "USE_TABLE": block_table is not None,
        "USE_LENGTH": lengths is not None,
        "SPAN": chosen.spans,
    }
    grid = (chosen.programs(tokens) * math.ceil(heads / config.heads),)
    return Launch(
        split_kernel, grid, scalars, constants, pdl=pdl, num_warps=config.warps,
        num_stages=config.stages,
    )  # fmt: skip


def _merge(tokens: int, heads: int, latent_dim: int, chosen: Plan, pdl: bool) -> Launch | None:
    parts = chosen.parts
    if parts == 1:
        return None
    return merge_launch(
        tokens * heads,
        latent_dim,
        max_parts=parts,
        strides=(parts * latent_dim, latent_dim, parts, 1),
        sharing=(heads, chosen.units, chosen.share),
        pdl=pdl,
    )


@functools.lru_cache(maxsize=64)
def _has_fp8_conversion(device: torch.device) -> bool:
    return INTERPRET or torch.cuda.get_device_capability(device) >= (8, 9)
