"""Argument checks: each error names the argument, what came and what is allowed."""

from __future__ import annotations

import os

import torch
from torch import Tensor

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether kernels run in Triton's interpreter, as decided when this package was imported."""


def require(condition: bool, name: str, got: str, allowed: str) -> None:
    """Raise ValueError unless `condition` holds."""
    if not condition:
        raise ValueError(f"{name}: got {got}; allowed: {allowed}")


def check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    require(tuple(value.shape) == shape, name, f"shape {list(value.shape)}", f"{list(shape)}")


def check_dtype(name: str, value: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    require(value.dtype in dtypes, name, str(value.dtype).removeprefix("torch."), allowed)


def check_contiguous(name: str, value: Tensor) -> None:
    require(value.is_contiguous(), name, f"strides {value.stride()}", "a contiguous tensor")


def check_device(name: str, value: Tensor) -> None:
    require(value.is_cuda or INTERPRET, name, f"a tensor on {value.device}", "a CUDA device")
