"""Fills the parameters of a model with a rank's part of the files' tensors.

Pieces are read in the order of the files, cut, decoded where vLLM holds them so, and copied to
where they belong. It knows tensors and places, nothing of vLLM.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from glm5_kernel.gguf.decoding import Bytes, Floats, decode_rows
from glm5_kernel.gguf.hyperparameters import Hyperparameters
from glm5_kernel.gguf.kv_b import assemble, heads_of, k_rows, v_rows
from glm5_kernel.gguf.plan import Piece
from glm5_kernel.gguf.progress import Progress
from glm5_kernel.gguf.slicing import (
    Chunk,
    Shape,
    Slice,
    byte_columns,
    chunks,
    runs,
    shape_of,
)
from glm5_kernel.gguf.staging import BUFFERS, CHUNK, THREADS, Buffer, OpenFiles
from glm5_kernel.gguf.types import row_bytes

DECODED = 16
"""Part of a chunk that is decoded at a time: numpy's float32 take ten times the bytes of 4-bit
blocks, several times over, in every thread."""

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Fill:
    """Where a part of a parameter comes from.

    Attributes:
        pieces: one tensor, or k_b and v_b.
        target: where it goes: [count, rows, columns] of values, or of bytes where the tensor stays
            quantised (then uint8).
        part: the rank's part of the tensor; of k_b and v_b, of the rows of kv_b_proj.
        stacked: whether the tensor is a stack of matrices (experts).
    """

    pieces: tuple[Piece, ...]
    target: torch.Tensor
    part: Slice
    stacked: bool = False

    @property
    def raw(self) -> bool:
        """Whether bytes are copied as they are."""
        return len(self.pieces) == 1 and self.pieces[0].placed.action == "kept"


@dataclass(frozen=True)
class _Job:
    """A piece of work: `read` takes the files and a buffer and gives what is copied to `target`,
    or None once it has put it there itself."""

    shard: int
    place: int
    nbytes: int
    target: torch.Tensor
    read: Callable[[OpenFiles, Buffer], torch.Tensor | None]


def fill_all(
    fills: Iterable[Fill],
    paths: Sequence[str],
    hp: Hyperparameters,
    progress: Callable[[int], Progress],
    *,
    chunk: int = CHUNK,
    threads: int | None = None,
) -> int:
    """Read and place everything; returns the bytes read.

    Args:
        fills: what goes where.
        paths: the files, as the pieces' shards number them.
        hp: the model's hyperparameters.
        progress: makes the reporter for so many bytes.
        chunk: bytes read at a time.
        threads: that read and decode; as many as the machine has, up to 8, if None.

    Raises:
        GgufError: a file was cut short meanwhile.
        OSError: a file cannot be read.
    """
    jobs = sorted(
        (job for fill in fills for job in _jobs(fill, hp, chunk)),
        key=lambda job: (job.shard, job.place),
    )
    total = sum(job.nbytes for job in jobs)
    report = progress(total)
    pinned = any(job.target.device.type == "cuda" for job in jobs)
    count = threads or min(THREADS, os.cpu_count() or 1)
    with OpenFiles(paths) as files, ThreadPoolExecutor(count) as pool, torch.no_grad():
        _run(jobs, files, pool, [Buffer(chunk, pinned=pinned) for _ in range(BUFFERS)], report)
    if pinned:
        torch.cuda.synchronize()
    report.finish()
    return total


def _run(
    jobs: Sequence[_Job],
    files: OpenFiles,
    pool: ThreadPoolExecutor,
    buffers: Sequence[Buffer],
    report: Progress,
) -> None:
    """At most one job a buffer is under way; they end in order."""
    free = deque(buffers)
    pending: deque[tuple[_Job, Buffer, Future[torch.Tensor | None]]] = deque()
    try:
        for job in jobs:
            if not free:
                free.append(_finish(*pending.popleft(), report))
            buffer = free.popleft()
            buffer.prepare(job.nbytes)
            pending.append((job, buffer, pool.submit(job.read, files, buffer)))
        while pending:
            free.append(_finish(*pending.popleft(), report))
    except BaseException:
        for _, _, future in pending:
            future.cancel()
        raise


def _finish(
    job: _Job, buffer: Buffer, future: Future[torch.Tensor | None], report: Progress
) -> Buffer:
    found = future.result()
    report.add(job.shard, job.nbytes)
    if found is not None:
        job.target.copy_(found.view(job.target.shape), non_blocking=True)
        buffer.copied_from(job.target.device)
    return buffer


def _jobs(fill: Fill, hp: Hyperparameters, chunk: int) -> Iterator[_Job]:
    if len(fill.pieces) == 2:
        yield _kv_b_job(fill, hp)
        return
    piece = fill.pieces[0]
    shape = shape_of(piece.info, stacked=fill.stacked)
    row = row_bytes(piece.kind, shape.columns)
    decoded = not fill.raw and not piece.kind.is_float
    for each in chunks(shape, fill.part, row, chunk // DECODED if decoded else chunk):
        yield _chunk_job(fill, piece, shape, row, each)


def _chunk_job(fill: Fill, piece: Piece, shape: Shape, row: int, chunk: Chunk) -> _Job:
    matrices = chunk.matrices[1] - chunk.matrices[0]
    height = chunk.rows[1] - chunk.rows[0]
    first = chunk.rows[0] - fill.part.rows[0]
    target = fill.target[chunk.matrices[0] : chunk.matrices[1], first : first + height]
    parts = tuple(runs(shape, chunk, row))
    shard, base = piece.located.shard, piece.located.offset

    in_place = fill.raw and target.device.type == "cpu" and target.is_contiguous()

    def read(files: OpenFiles, buffer: Buffer) -> torch.Tensor | None:
        if in_place and fill.part.columns == (0, shape.columns):
            files.read_runs(shard, base, parts, target.view(-1).numpy())
            return None
        array = buffer.array(matrices * height * row)
        files.read_runs(shard, base, parts, array)
        return _cut(fill, piece, array.reshape(-1, row), target.dtype)

    nbytes = matrices * height * row
    return _Job(shard, base + parts[0].offset, nbytes, target, read)


def _cut(fill: Fill, piece: Piece, rows: Bytes, dtype: torch.dtype) -> torch.Tensor:
    """The rank's columns of whole rows: bytes, or values of `dtype`."""
    shape = shape_of(piece.info, stacked=fill.stacked)
    columns = fill.part.columns
    every = columns == (0, shape.columns)
    if fill.raw:
        if not every:
            rows = _packed(rows, *byte_columns(piece.name, piece.kind, columns))
        return torch.from_numpy(rows)
    if piece.kind.is_float:
        values = torch.from_numpy(rows).view(_DTYPES[piece.kind.name])
    else:
        values = torch.from_numpy(decode_rows(rows, piece.kind))
    return (values if every else values[:, columns[0] : columns[1]]).to(dtype).contiguous()


def _packed(rows: Bytes, first: int, last: int) -> Bytes:
    """Columns of uint8 [rows, bytes] moved together to its beginning, which may be page-locked."""
    count, width = rows.shape[0], last - first
    packed: Bytes = rows.reshape(-1)[: count * width].reshape(count, width)
    packed[...] = rows[:, first:last]
    return packed


def _kv_b_job(fill: Fill, hp: Hyperparameters) -> _Job:
    k, v = sorted(fill.pieces, key=lambda piece: piece.role)
    heads = heads_of(fill.part.rows, hp)
    spans = (_span(k, k_rows(heads, hp), hp.nope), _span(v, v_rows(heads, hp), hp.kv_lora))
    dtype = fill.target.dtype

    def read(files: OpenFiles, buffer: Buffer) -> torch.Tensor:
        array = buffer.array(sum(size for _, size, _ in spans))
        cut = spans[0][1]
        keys = _span_values(k, spans[0], files, array[:cut])
        values = _span_values(v, spans[1], files, array[cut:])
        return torch.from_numpy(assemble(keys, values, hp)).to(dtype)

    # It is done when the later of the two is due: the files stay in order.
    last = max((k, v), key=lambda piece: (piece.located.shard, piece.located.offset))
    nbytes = sum(size for _, size, _ in spans)
    return _Job(last.located.shard, last.located.offset, nbytes, fill.target, read)


def _span_values(piece: Piece, span: tuple[int, int, int], files: OpenFiles, into: Bytes) -> Floats:
    """Read and decode rows of a tensor."""
    files.read(piece.located.shard, piece.located.offset + span[0], into)
    return decode_rows(into.reshape(-1, span[2]), piece.kind)


def _span(piece: Piece, rows: tuple[int, int], columns: int) -> tuple[int, int, int]:
    """Where rows of `columns` values lie in a tensor: offset, bytes, bytes of a row."""
    row = row_bytes(piece.kind, columns)
    return rows[0] * row, (rows[1] - rows[0]) * row, row
