"""Scores and selection together, with bounded memory for the scores.

Rows are worked on in chunks whose scores fit a given number of bytes. A chunk is whole rows, so
nothing is to be merged and the result is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm5_kernel.ops.checks import check_contiguous, check_dtype, check_same_device, require
from glm5_kernel.ops.indexer_logits import mqa_logits, paged_mqa_logits
from glm5_kernel.ops.topk import topk_indices

LOGITS_BYTES = 256 << 20
"""Bytes that scores may take unless a caller says otherwise."""


def prefill_topk(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    topk: int,
    *,
    out: Tensor | None = None,
    logits: Tensor | None = None,
    workspace: Tensor | None = None,
    logits_bytes: int = LOGITS_BYTES,
) -> Tensor:
    """The keys with the largest scores for each query token: `mqa_logits`, then `topk_indices`.

    Args:
        q: [M, H, 128] e4m3.
        k: [N, 128] e4m3.
        k_scale: [N] float32.
        weights: [M, H] float32.
        starts, ends: [M] int32: row m's keys are k[starts[m] : ends[m]].
        topk: 1 to 2048.
        out: result [M, topk] int32, rows contiguous.
        logits: 1-D float32, contiguous: where the scores go, in place of new memory; it decides
            about the chunks.
        workspace: see `topk_indices`.
        logits_bytes: bytes of scores at a time, without `logits`.

    Returns:
        [M, topk] int32: positions from starts[m] on; −1 behind a row's last.

    Raises:
        ValueError: an argument does not fit, or the scores of one row do not.
    """
    rows, columns = q.shape[0], k.shape[0]
    if out is None:
        out = torch.empty(rows, topk, dtype=torch.int32, device=q.device)
    step, space = _chunks(rows, columns, logits, logits_bytes, q.device)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        some = space.as_strided((last - first, columns), (columns, 1))
        begin, end = _part(starts, first, last), _part(ends, first, last)
        mqa_logits(
            _part(q, first, last), k, k_scale, _part(weights, first, last), begin, end, out=some
        )
        topk_indices(
            some, topk, starts=begin, ends=end, out=_part(out, first, last), workspace=workspace
        )
    return out


def decode_topk(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    topk: int,
    *,
    max_context: int,
    out: Tensor | None = None,
    logits: Tensor | None = None,
    workspace: Tensor | None = None,
    logits_bytes: int = LOGITS_BYTES,
) -> Tensor:
    """The cached tokens with the largest scores: `paged_mqa_logits`, then `topk_indices`.

    Args:
        q: [B, n, H, 128] e4m3.
        kv_cache: [blocks, 64, 132] or [blocks, 64, 1, 132] uint8.
        weights: [B * n, H] float32.
        context_lens: [B] or [B, n] int32.
        block_tables: [B, pages] int32.
        topk: 1 to 2048.
        max_context: no length is larger.
        out: result [B * n, topk] int32, rows contiguous.
        logits: 1-D float32, contiguous: where the scores go, in place of new memory; it decides
            about the chunks.
        workspace: see `topk_indices`.
        logits_bytes: bytes of scores at a time, without `logits`.

    Returns:
        [B * n, topk] int32: positions in the request; −1 behind a row's last.

    Raises:
        ValueError: an argument does not fit, or the scores of one request do not.
    """
    batch, next_n = q.shape[:2]
    if out is None:
        out = torch.empty(batch * next_n, topk, dtype=torch.int32, device=q.device)
    # Rows a multiple of 16 bytes apart are read faster.
    width = -(-max_context // 4) * 4
    step, space = _chunks(batch, next_n * width, logits, logits_bytes, q.device)
    for first in range(0, batch, step):
        last = min(first + step, batch)
        rows = first * next_n, last * next_n
        some = space.as_strided((rows[1] - rows[0], max_context), (width, 1))
        lengths = _part(context_lens, first, last)
        paged_mqa_logits(
            _part(q, first, last), kv_cache, _part(weights, *rows), lengths,
            _part(block_tables, first, last), max_context=max_context, out=some,
        )  # fmt: skip
        topk_indices(some, topk, ends=lengths, out=_part(out, *rows), workspace=workspace)
    return out


def _part(value: Tensor, first: int, last: int) -> Tensor:
    """Rows; the tensor itself if it has no others, as it usually is."""
    return value if first == 0 and last == value.shape[0] else value[first:last]


def _chunks(
    count: int, width: int, logits: Tensor | None, logits_bytes: int, device: torch.device
) -> tuple[int, Tensor]:
    """How many of `count` things, with `width` scores each, fit at a time, and where to."""
    if logits is not None:
        check_dtype("logits", logits, (torch.float32,))
        require(logits.ndim == 1, "logits", f"{logits.ndim} dims", "1")
        check_contiguous("logits", logits)
        check_same_device("logits", logits, device)
    room = logits_bytes // 4 if logits is None else logits.numel()
    name = "logits_bytes" if logits is None else "logits"
    require(room >= width or count == 0, name, f"room for {room} scores",
            f"at least {width}, those of one")  # fmt: skip
    step = max(1, min(count, room // max(1, width)))
    # Slices then begin at multiples of 16 bytes: others would be compiled for while serving.
    step -= step % 4 if 4 <= step < count else 0
    if logits is None:
        logits = torch.empty(step * width if count else 0, dtype=torch.float32, device=device)
    return step, logits
