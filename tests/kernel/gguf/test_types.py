"""The table of quantisation types against gguf-py's, and rows against its sizes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import quant_shape_to_byte_shape
from glm5_kernel.gguf.decoding import decode_rows
from glm5_kernel.gguf.types import BY_NAME, TYPES, QuantType, row_bytes, tensor_bytes


def test_the_table_is_ggufs() -> None:
    theirs = {
        kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
    }  # fmt: skip
    assert {n: (kind.name, kind.block, kind.size) for n, kind in TYPES.items()} == theirs


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_bytes_of_rows(kind: object) -> None:
    assert isinstance(kind, type(BY_NAME["F32"]))
    number = gguf.GGMLQuantizationType(kind.number)
    *_, size = quant_shape_to_byte_shape((3, 1024), number)
    assert row_bytes(kind, 1024) == size
    assert tensor_bytes(kind, (1024, 3, 2)) == size * 6
    if kind.block > 1:
        with pytest.raises(ValueError, match=f"no multiple of the {kind.block}"):
            row_bytes(kind, 1024 + kind.block // 2)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_what_can_be_decoded(kind: QuantType) -> None:
    rows = np.zeros((2, kind.size * 3), dtype=np.uint8)
    if kind.is_decodable:
        assert decode_rows(rows, kind).shape == (2, kind.block * 3)
    else:
        with pytest.raises(NotImplementedError):
            decode_rows(rows, kind)
