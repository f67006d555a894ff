"""Exact top-k of the rows of a matrix of scores.

Arguments, checks and the launch; `topk_short` and `topk_kernel` hold the kernels, for rows that fit
in registers and for others, `indexer_configs` their tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_kernel.ops.checks import (
    check_aligned,
    check_contiguous,
    check_device,
    check_dtype,
    check_same_device,
    check_shape,
    check_workspace,
    require,
)
from glm5_kernel.ops.forms import once_per_form
from glm5_kernel.ops.indexer_configs import (
    TOPK,
    ShortTopkConfig,
    TopkConfig,
    TopkPlan,
    topk_lists,
    topk_plan,
)
from glm5_kernel.ops.launch import Launch, View
from glm5_kernel.ops.sparse_mla import device_table, supports_pdl
from glm5_kernel.ops.topk_kernel import topk_kernel
from glm5_kernel.ops.topk_short import short_topk_kernel

MOST_K = 2048
"""The largest k."""
MOST_COLUMNS = 1 << 29
"""The kernels count columns, and the tile that comes after the row's last, in int32."""


def topk_indices(
    logits: Tensor,
    k: int,
    *,
    starts: Tensor | None = None,
    ends: Tensor,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    force_plan: TopkPlan | None = None,
) -> Tensor:
    """Where the k largest values of each row's range lie.

    Exact: the values at the indices are those that torch.topk would give, equal ones counted; of
    values that tie for the last places those with the smallest indices are taken, so the set is the
    same in every run. The order of the indices is any. NaN counts as larger than everything else;
    of a row with k or more of them any k positions are chosen.

    Nothing outside the matrix is read, and nothing outside a row's range counts. With `out` and
    `workspace` given nothing is allocated, and nothing ever waits for the GPU; programs are shared
    out by shapes alone, so a captured CUDA graph stays valid whatever the ranges are.

    Args:
        logits: [R, W] float32, rows contiguous but any distance apart, W up to 2^29.
        k: 1 to 2048.
        starts: [R] int32: the first column of each row's range; without it, 0.
        ends: int32, the column after the range: [R] or [B, n] with B · n = R, one for each row; or
            [B] with B · n = R, the end for the last of the n rows of a request, each row before it
            ends one column sooner (the decode lengths of vLLM 0.26).
        out: result [R, k] int32, rows contiguous.
        workspace: 1-D uint8 of at least `workspace_bytes`, 16-byte aligned, all zero before its
            first use; every call leaves the part that must be zero as it was. Not for calls that
            may run at the same time. Rows that fit in registers need none.
        force_plan: share the work out like this; for measurements.

    Returns:
        [R, k] int32: positions from `starts` on, as vLLM's `top_k_per_row_prefill` gives them. A
        row with fewer than k has all of them in order, then −1.

    Raises:
        ValueError: an argument has a shape, dtype, device or layout that is not allowed.
    """
    call = _call(logits, k, starts, ends, out, workspace, force_plan)
    if out is None:
        out = torch.empty(call.rows, k, dtype=torch.int32, device=logits.device)
    if call.launch is None:
        return out
    if workspace is not None:
        check_aligned("workspace", workspace)
    first = ends if starts is None else starts
    space = _space(workspace, call.ends, logits.device) if call.ends else ()
    call.launch(logits, first, ends, out, *space)
    return out


@dataclass(frozen=True)
class _Call:
    """What follows from the form of a call.

    Attributes:
        rows: of the result.
        launch: nothing is launched without rows.
        ends: where the counters, the lists' values and their indices end in the workspace, in
            bytes; none where nothing is written to it.
    """

    rows: int
    launch: Launch | None = None
    ends: tuple[int, int, int] | None = None


@once_per_form
def _call(
    logits: Tensor,
    k: int,
    starts: Tensor | None,
    ends: Tensor,
    out: Tensor | None,
    workspace: Tensor | None,
    force_plan: TopkPlan | None,
) -> _Call:
    """Check everything but addresses, and prepare the launch; see `topk_indices`."""
    rows, columns = _check_logits(logits, k)
    next_n, steps, last_only = _check_ranges(logits, starts, ends)
    device = logits.device
    if out is not None:
        _check_out(out, rows, k, device)
    if rows == 0:
        return _Call(rows)
    arch, hardware = device_table(device)
    chosen = force_plan or topk_plan(arch, rows, columns, hardware.processors)
    ends_at = _workspace_ends(chosen, rows)
    if workspace is not None:
        check_workspace(workspace, ends_at[-1] if ends_at else 0, device)
    s_out = k if out is None else out.stride(0)
    scalars = (columns, next_n, k, logits.stride(0), s_out, *steps)
    constants = {
        "KB": 1 << (k - 1).bit_length(), "USE_START": starts is not None, "LAST_ONLY": last_only,
    }  # fmt: skip
    return _Call(rows, _launch(chosen, rows, scalars, constants, supports_pdl(device)), ends_at)


def _launch(
    chosen: TopkPlan, rows: int, scalars: tuple[int, ...], constants: dict[str, int], pdl: bool
) -> Launch:
    """scalars, constants: what both kernels take, the number of columns first."""
    config, columns = chosen.config, scalars[0]
    constants = constants | {"ROOM": config.room, "WARPS": config.warps}
    if isinstance(config, ShortTopkConfig):
        require(columns <= config.room, "logits", f"{columns} columns", f"at most {config.room}")
        return Launch(
            short_topk_kernel, (rows,), scalars, constants, pdl=pdl, num_warps=config.warps
        )
    more = {
        "SAMPLE": config.sample(columns), "HELD": config.held, "LIST": config.list,
        "TILE": config.tile, "SPLIT": chosen.split,
    }  # fmt: skip
    return Launch(
        topk_kernel, (chosen.programs(rows),),
        (*scalars, rows, chosen.parts, config.list + config.room), constants | more, pdl=pdl,
        num_warps=config.warps, maxnreg=config.registers,
    )  # fmt: skip


def _workspace_ends(chosen: TopkPlan, rows: int) -> tuple[int, int, int] | None:
    """See `_Call`."""
    config = chosen.config
    if isinstance(config, ShortTopkConfig):
        return None
    first = config.counter_bytes
    last = _bytes(config, rows if chosen.split else chosen.parts)
    return first, (first + last) // 2, last


def unscored(rows: int, columns: int, device: torch.device) -> Tensor:
    """What to choose from where no row's range is longer than k: then no score is looked at.

    Returns:
        [rows, columns] float32, undefined; all rows are the same memory.
    """
    return torch.empty_strided((rows, columns), (0, 1), dtype=torch.float32, device=device)


def workspace_bytes(max_rows: int, *, device: torch.device | str = "cuda") -> int:
    """Bytes of `workspace` that any call of up to `max_rows` rows needs on `device`."""
    arch, hardware = device_table(torch.device(device))
    return _bytes(TOPK[arch].many, topk_lists(arch, max_rows, hardware.processors))


def _bytes(config: TopkConfig, lists: int) -> int:
    return config.counter_bytes + lists * (config.list + config.room) * 8


def _check_logits(logits: Tensor, k: int) -> tuple[int, int]:
    require(logits.ndim == 2, "logits", f"{logits.ndim} dims", "2: [R, W]")
    check_device("logits", logits)
    check_dtype("logits", logits, (torch.float32,))
    require(logits.stride(1) == 1 or logits.shape[1] <= 1, "logits", f"strides {logits.stride()}",
            "contiguous rows")  # fmt: skip
    rows, columns = logits.shape
    require(columns <= MOST_COLUMNS, "logits", f"{columns} columns", f"at most {MOST_COLUMNS}")
    require(1 <= k <= MOST_K, "k", str(k), f"1 to {MOST_K}")
    return rows, columns


def _check_ranges(
    logits: Tensor, starts: Tensor | None, ends: Tensor
) -> tuple[int, tuple[int, int], bool]:
    """Rows per request, strides of `ends`, and whether it holds the last row's end alone."""
    rows = logits.shape[0]
    for name, value in (("starts", starts), ("ends", ends)):
        if value is not None:
            check_dtype(name, value, (torch.int32,))
            check_same_device(name, value, logits.device)
    # The kernels find an end by an int32.
    last = sum((size - 1) * step for size, step in zip(ends.shape, ends.stride(), strict=True))
    require(last < 2**31, "ends", f"strides {ends.stride()}", "all within 2^31 elements")
    if starts is not None:
        check_shape("starts", starts, (rows,))
        check_contiguous("starts", starts)
    allowed = f"[{rows}], or [B] or [B, n] with B x n = {rows}"
    got = f"shape {list(ends.shape)}"
    if ends.ndim == 2:
        require(ends.numel() == rows, "ends", got, allowed)
        return max(1, ends.shape[1]), (ends.stride(0), ends.stride(1)), False
    fits = ends.ndim == 1 and (rows % ends.numel() == 0 if ends.numel() else rows == 0)
    require(fits, "ends", got, allowed)
    next_n = rows // max(1, ends.numel())
    return max(1, next_n), (ends.stride(0), 0), next_n > 1


def _check_out(out: Tensor, rows: int, k: int, device: torch.device) -> None:
    check_shape("out", out, (rows, k))
    check_dtype("out", out, (torch.int32,))
    check_same_device("out", out, device)
    require(out.stride(1) == 1 or k == 1, "out", f"strides {out.stride()}", "contiguous rows")


def _space(
    workspace: Tensor | None, ends: tuple[int, int, int], device: torch.device
) -> tuple[View, View, View]:
    """Counters, and the lists' values and indices."""
    first, second, last = ends
    if workspace is None:
        workspace = torch.empty(last, dtype=torch.uint8, device=device)
        workspace[:first].zero_()
    return (
        View(workspace, torch.int32, 0, first),
        View(workspace, torch.float32, first, second),
        View(workspace, torch.int32, second, last),
    )
