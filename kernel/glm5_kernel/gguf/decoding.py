"""Values from the bytes of a tensor, by gguf-py's vectorised numpy code, spread over threads.

numpy lets go of the interpreter in all its large operations, so threads share the work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm5_kernel.gguf.types import QuantType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def decode_rows(data: Bytes, kind: QuantType) -> Floats:
    """Rows of values from rows of bytes.

    Args:
        data: uint8 [..., bytes of a row].
        kind: their type.

    Returns:
        float32 [..., values of a row].
    """
    if kind.name == "F32":
        return np.ascontiguousarray(data).view(np.float32)
    if kind.name == "F16":
        return np.ascontiguousarray(data).view(np.float16).astype(np.float32)
    if kind.name == "BF16":
        wide = np.ascontiguousarray(data).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    return _decode_blocks(np.ascontiguousarray(data), kind)


def _decode_blocks(data: Bytes, kind: QuantType) -> Floats:
    import gguf

    number = gguf.GGMLQuantizationType(kind.number)
    # gguf-py reshapes to blocks, so that many short rows cost no more than a few long ones.
    decoded: Any = gguf.quants.dequantize(data, number)
    return np.asarray(decoded, dtype=np.float32)
