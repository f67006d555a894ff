"""Argument checks: each error names the argument, what came and what is allowed."""

from __future__ import annotations

import os

import torch
from torch import Tensor

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter, as decided when this package was imported."""


# A server checks some dozens of arguments for every layer: words are made only where they are said.


def require(condition: bool, name: str, got: str, allowed: str) -> None:
    """Raise ValueError unless `condition` holds."""
    if not condition:
        raise ValueError(f"{name}: got {got}; allowed: {allowed}")


def check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        require(False, name, f"shape {list(value.shape)}", f"{list(shape)}")


def check_dtype(name: str, value: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    if value.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        require(False, name, str(value.dtype).removeprefix("torch."), allowed)


def check_contiguous(name: str, value: Tensor) -> None:
    if not value.is_contiguous():
        require(False, name, f"strides {value.stride()}", "a contiguous tensor")


def check_device(name: str, value: Tensor) -> None:
    if not (value.is_cuda or INTERPRET):
        require(False, name, f"a tensor on {value.device}", "a CUDA device")


def check_same_device(name: str, value: Tensor, device: torch.device) -> None:
    if value.device != device:
        require(False, name, str(value.device), str(device))


def check_words(value: Tensor, steps: tuple[int, ...], what: str) -> None:
    """A cache is read in words of 4 bytes: steps between its parts, or its address."""
    if any(step % 4 for step in steps):
        require(False, "kv_cache", f"strides {value.stride()}", f"{what} at multiples of 4 bytes")


def check_workspace(value: Tensor, needed: int, device: torch.device) -> None:
    """All but its address."""
    check_dtype("workspace", value, (torch.uint8,))
    require(value.ndim == 1, "workspace", f"{value.ndim} dims", "1")
    check_contiguous("workspace", value)
    check_same_device("workspace", value, device)
    require(value.numel() >= needed, "workspace", f"{value.numel()} bytes", f"at least {needed}")


def check_aligned(name: str, value: Tensor) -> None:
    """Of an address, so at every call: `forms` remembers nothing of one."""
    if value.data_ptr() % 16:
        require(False, name, "an unaligned address", "16-byte aligned")
