"""The quantisation types of ggml: number, name, and how many bytes a block of values takes.

The figures are those of ggml as gguf-py 0.19 lists them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kernel = Literal["float", "standard", "k", "iq", "none"]


@dataclass(frozen=True)
class QuantType:
    """How values are stored.

    Attributes:
        number: as tensors name it in a file.
        name: ggml's.
        block: values per block; a row holds whole blocks.
        size: bytes per block.
        kernel: family of vllm-gguf-plugin 0.0.5's CUDA kernels that reads it; "float" needs none,
            "none" has none (quantization/utils.py).
    """

    number: int
    name: str
    block: int
    size: int
    kernel: Kernel = "none"

    @property
    def is_float(self) -> bool:
        """Whether vLLM holds it as an ordinary tensor: F32, F16 or BF16."""
        return self.kernel == "float"

    @property
    def is_decodable(self) -> bool:
        """Whether gguf-py 0.19 gives its values; without that nothing can be loaded."""
        return self.name not in _UNDECODABLE

    @property
    def bits(self) -> float:
        """Bits per value."""
        return self.size * 8 / self.block


_UNDECODABLE = frozenset({"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64", "F64"})

_ROWS: tuple[tuple[int, str, int, int, Kernel], ...] = (
    (0, "F32", 1, 4, "float"),
    (1, "F16", 1, 2, "float"),
    (2, "Q4_0", 32, 18, "standard"),
    (3, "Q4_1", 32, 20, "standard"),
    (6, "Q5_0", 32, 22, "standard"),
    (7, "Q5_1", 32, 24, "standard"),
    (8, "Q8_0", 32, 34, "standard"),
    (9, "Q8_1", 32, 40, "standard"),
    (10, "Q2_K", 256, 84, "k"),
    (11, "Q3_K", 256, 110, "k"),
    (12, "Q4_K", 256, 144, "k"),
    (13, "Q5_K", 256, 176, "k"),
    (14, "Q6_K", 256, 210, "k"),
    (15, "Q8_K", 256, 292, "none"),
    (16, "IQ2_XXS", 256, 66, "iq"),
    (17, "IQ2_XS", 256, 74, "iq"),
    (18, "IQ3_XXS", 256, 98, "iq"),
    (19, "IQ1_S", 256, 50, "iq"),
    (20, "IQ4_NL", 32, 18, "iq"),
    (21, "IQ3_S", 256, 110, "iq"),
    (22, "IQ2_S", 256, 82, "iq"),
    (23, "IQ4_XS", 256, 136, "iq"),
    (24, "I8", 1, 1, "none"),
    (25, "I16", 1, 2, "none"),
    (26, "I32", 1, 4, "none"),
    (27, "I64", 1, 8, "none"),
    (28, "F64", 1, 8, "none"),
    (29, "IQ1_M", 256, 56, "iq"),
    (30, "BF16", 1, 2, "float"),
    (34, "TQ1_0", 256, 54, "none"),
    (35, "TQ2_0", 256, 66, "none"),
    (39, "MXFP4", 32, 17, "none"),
    (40, "NVFP4", 64, 36, "none"),
    (41, "Q1_0", 128, 18, "none"),
)

TYPES: dict[int, QuantType] = {row[0]: QuantType(*row) for row in _ROWS}
"""By number."""

BY_NAME: dict[str, QuantType] = {kind.name: kind for kind in TYPES.values()}


def row_bytes(kind: QuantType, values: int) -> int:
    """Bytes of a row of `values` values.

    Raises:
        ValueError: a row does not hold whole blocks.
    """
    blocks, rest = divmod(values, kind.block)
    if rest:
        raise ValueError(
            f"a row of {values} values is no multiple of the {kind.block} of a {kind.name} block"
        )
    return blocks * kind.size


def tensor_bytes(kind: QuantType, ne: Sequence[int]) -> int:
    """Bytes of a tensor of ggml dimensions `ne`, fastest first.

    Raises:
        ValueError: a row does not hold whole blocks.
    """
    size = row_bytes(kind, ne[0] if ne else 1)
    for dimension in ne[1:]:
        size *= dimension
    return size
