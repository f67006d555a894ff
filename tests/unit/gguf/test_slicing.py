"""Which bytes a rank reads: all ranks' runs are the tensor, each byte once."""

from __future__ import annotations

import pytest
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.reader import TensorInfo
from glm5_kernel.gguf.slicing import (
    Shape,
    Slice,
    byte_columns,
    chunks,
    cut_columns,
    cut_rows,
    runs,
    shape_of,
    whole,
)
from glm5_kernel.gguf.types import BY_NAME
from hypothesis import given
from hypothesis import strategies as st


def read(data: bytes, shape: Shape, part: Slice, row: int, most: int) -> bytes:
    """What is read of a tensor, chunk by chunk."""
    out = b""
    for chunk in chunks(shape, part, row, most):
        size = (chunk.matrices[1] - chunk.matrices[0]) * (chunk.rows[1] - chunk.rows[0]) * row
        buffer = bytearray(size)
        for run in runs(shape, chunk, row):
            buffer[run.to : run.to + run.nbytes] = data[run.offset : run.offset + run.nbytes]
        out += buffer
    return out


@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.integers(1, 7), st.integers(1, 300)
)
def test_ranks_read_the_rows_of_each_matrix(
    count: int, height: int, size: int, row: int, most: int
) -> None:
    shape = Shape(count, height * size, row)
    data = bytes(n % 251 for n in range(count * height * size * row))
    ranks = [read(data, shape, cut_rows(shape, rank, size), row, most) for rank in range(size)]
    part, matrix = height * row, height * size * row
    for rank, found in enumerate(ranks):
        right = b"".join(data[n * matrix + rank * part :][:part] for n in range(count))
        assert found == right


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 7), st.integers(1, 300))
def test_chunks_are_no_longer_than_asked(count: int, height: int, row: int, most: int) -> None:
    shape = Shape(count, height, row)
    data = bytes(n % 251 for n in range(count * height * row))
    assert read(data, shape, whole(shape), row, most) == data
    for chunk in chunks(shape, whole(shape), row, most):
        size = (chunk.matrices[1] - chunk.matrices[0]) * (chunk.rows[1] - chunk.rows[0]) * row
        assert size <= max(most, row)


def test_shapes() -> None:
    experts = TensorInfo("blk.1.ffn_gate_exps.weight", (512, 256, 8), 8, 0)
    assert shape_of(experts, stacked=True) == Shape(8, 256, 512)
    assert shape_of(experts) == Shape(1, 2048, 512)
    assert shape_of(TensorInfo("output_norm.weight", (512,), 0, 0)) == Shape(1, 1, 512)
    assert shape_of(TensorInfo("x", (512, 256), 8, 0), stacked=True) == Shape(1, 256, 512)


def test_columns_are_cut_between_blocks() -> None:
    shape = Shape(1, 3, 2048)
    q8, q4_k = BY_NAME["Q8_0"], BY_NAME["Q4_K"]
    assert byte_columns("t", q8, cut_columns(shape, 3, 16).columns) == (3 * 136, 4 * 136)
    assert byte_columns("t", q4_k, cut_columns(shape, 1, 8).columns) == (144, 288)
    with pytest.raises(GgufError, match="blocks of 256 Q4_K values"):
        byte_columns("t", q4_k, cut_columns(shape, 1, 16).columns)
