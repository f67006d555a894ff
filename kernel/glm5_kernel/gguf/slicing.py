"""Which bytes of a tensor a rank holds, and in what pieces they are read.

A tensor is [count, rows, columns], slowest first: experts have a count, everything else has 1.
Quantised rows are cut between blocks only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.reader import TensorInfo
from glm5_kernel.gguf.types import QuantType, row_bytes


@dataclass(frozen=True)
class Shape:
    """A tensor's dimensions: how many matrices, rows in each, values in a row."""

    count: int
    rows: int
    columns: int


def shape_of(info: TensorInfo, *, stacked: bool = False) -> Shape:
    """Its dimensions as a stack of matrices (`stacked`, for experts) or as one matrix.

    A vector is one row; heads of a tensor with three dimensions are rows below one another.
    """
    columns, *rest = info.ne
    if stacked and len(rest) > 1:
        return Shape(math.prod(rest[1:]), rest[0], columns)
    return Shape(1, math.prod(rest), columns)


@dataclass(frozen=True)
class Slice:
    """A rank's part of every matrix of a tensor: rows and values within them, ends excluded."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def height(self) -> int:
        return self.rows[1] - self.rows[0]

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]


def whole(shape: Shape) -> Slice:
    """All of a tensor."""
    return Slice((0, shape.rows), (0, shape.columns))


def cut_rows(shape: Shape, rank: int, size: int) -> Slice:
    """The rank's share of the rows, which `size` divides."""
    part = shape.rows // size
    return Slice((rank * part, (rank + 1) * part), (0, shape.columns))


def cut_columns(shape: Shape, rank: int, size: int) -> Slice:
    """The rank's share of every row's values, which `size` divides."""
    part = shape.columns // size
    return Slice((0, shape.rows), (rank * part, (rank + 1) * part))


def byte_columns(name: str, kind: QuantType, columns: tuple[int, int]) -> tuple[int, int]:
    """Where values lie within a row, in bytes.

    Raises:
        GgufError: the values begin or end within a block.
    """
    if columns[0] % kind.block or columns[1] % kind.block:
        raise GgufError(
            f"tensor {name}: values {columns[0]} to {columns[1]} of its rows are no whole blocks "
            f"of {kind.block} {kind.name} values"
        )
    return row_bytes(kind, columns[0]), row_bytes(kind, columns[1])


@dataclass(frozen=True)
class Chunk:
    """What is read at a time: whole rows of some matrices.

    Attributes:
        matrices: from and to, of `Shape.count`.
        rows: from and to, of each.
    """

    matrices: tuple[int, int]
    rows: tuple[int, int]


def chunks(shape: Shape, part: Slice, row: int, most: int) -> Iterator[Chunk]:
    """A slice in chunks of at most `most` bytes, or one row where a row is longer.

    Args:
        shape: of the tensor.
        part: the slice.
        row: bytes of a row.
        most: bytes.
    """
    height = part.height
    each = height * row
    if each <= most:
        step = max(1, most // max(1, each))
        for first in range(0, shape.count, step):
            yield Chunk((first, min(first + step, shape.count)), part.rows)
        return
    step = max(1, most // row)
    for matrix in range(shape.count):
        for first in range(part.rows[0], part.rows[1], step):
            yield Chunk((matrix, matrix + 1), (first, min(first + step, part.rows[1])))


@dataclass(frozen=True)
class Run:
    """Bytes that lie together: where in the tensor's data, how many, and where they go."""

    offset: int
    nbytes: int
    to: int


def runs(shape: Shape, chunk: Chunk, row: int) -> Iterator[Run]:
    """The runs of a chunk's rows, one after the other in what they are read into."""
    height = chunk.rows[1] - chunk.rows[0]
    first, last = chunk.matrices
    if height == shape.rows:
        yield Run(first * shape.rows * row, (last - first) * height * row, 0)
        return
    for matrix in range(first, last):
        offset = (matrix * shape.rows + chunk.rows[0]) * row
        yield Run(offset, height * row, (matrix - first) * height * row)
