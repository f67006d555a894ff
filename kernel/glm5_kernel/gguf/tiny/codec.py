"""Values to bytes and back, by gguf-py and, for K and IQ types, by libgguf."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm5_kernel.gguf.types import QuantType


class MissingPackageError(RuntimeError):
    """A package that making tiny models needs, and how to get it."""


def package(name: str, purpose: str, without: str | None = None) -> ModuleType:
    """A package that this one does not depend on.

    Args:
        without: the option that does without it.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {name}, which cannot be imported ({error}); "
            f"install it: python -m pip install {name}{f', or give {without}' if without else ''}"
        ) from error


BY_GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "MXFP4")


def encode(values: NDArray[np.float32], kind: QuantType) -> NDArray[Any]:
    """Values in numpy's order as a file holds them: F32, F16, or bytes with whole rows last.

    Raises:
        MissingPackageError: what writes this type is not installed.
    """
    if kind.name in ("F32", "F16"):
        return values.astype(np.float32 if kind.name == "F32" else np.float16)
    if kind.name in BY_GGUF:
        gguf = package("gguf", "making a GGUF file")
        number = gguf.GGMLQuantizationType(kind.number)
        return np.asarray(gguf.quants.quantize(values, number)).view(np.uint8)
    libgguf = package("libgguf", f"quantising to {kind.name}")
    return np.asarray(libgguf.quantize_rows(values, kind.number))


def decode(data: NDArray[Any], kind: QuantType) -> NDArray[np.float32]:
    """What `encode` made, as float32, by gguf-py's own decoding."""
    gguf = package("gguf", "reading a GGUF file's weights")
    number = gguf.GGMLQuantizationType(kind.number)
    return np.asarray(gguf.quants.dequantize(data, number), dtype=np.float32)
