"""The header of a GGUF file: metadata and where each tensor lies, from a file or given bytes.

A header is read through `read_at(offset, length)`, so it may come from a local file, from memory or
over SFTP; tensor data is never touched. No length in the file is trusted: what is read and kept is
bounded by the file's size and by the limits below. GGUF 2 and 3, little endian
(ggml's docs/gguf.md); gguf-py's own reader needs numpy and the whole file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.types import TYPES, QuantType, tensor_bytes

ReadAt = Callable[[int, int], bytes]
"""`read_at(offset, length)`: up to `length` bytes; fewer only at the end of the file."""

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

CHUNK = 1 << 20
"""Bytes asked for at a time: a GLM-5 header (10 MB, most of it tokens) takes ten round trips."""
MAX_HEADER = 256 << 20
MAX_KEY = 65_535
MAX_NAME = 1_024
MAX_STRING = 16 << 20
"""Longest string kept: a chat template; larger ones are refused."""
MAX_COUNT = 1 << 17
"""Most metadata entries or tensors; GLM-5 has 1,809 tensors."""
MAX_DEPTH = 4
MAX_NESTED = 1 << 16
"""Most arrays within arrays of a file; no known writer makes any."""
MAX_STRINGS = 1 << 22
"""Longest array of strings; GLM-5 has 154,880 tokens and twice as many merges."""
KEEP_VALUES = 4_096
"""Longest array whose values are kept; the tokens of a vocabulary are counted and passed over."""
KEEP_TOTAL = 1 << 18
"""Array values kept in all, so that no file takes much more memory than its header is long."""
MAX_DIMENSIONS = 4

SCALARS: dict[int, tuple[str, str, int]] = {
    0: ("uint8", "<B", 1), 1: ("int8", "<b", 1),
    2: ("uint16", "<H", 2), 3: ("int16", "<h", 2),
    4: ("uint32", "<I", 4), 5: ("int32", "<i", 4),
    6: ("float32", "<f", 4), 7: ("bool", "<B", 1),
    10: ("uint64", "<Q", 8), 11: ("int64", "<q", 8), 12: ("float64", "<d", 8),
}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Array:
    """An array of metadata.

    Attributes:
        kind: type of its elements: uint8 … float64, bool, string or array.
        length: elements.
        values: them, or None where there were more than `KEEP_VALUES` or `KEEP_TOTAL` in all.
    """

    kind: str
    length: int
    values: tuple[Value, ...] | None


Value = int | float | bool | str | Array


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and what it holds.

    Attributes:
        name: as in the file.
        ne: ggml dimensions, fastest first.
        number: of its quantisation type.
        offset: of its data, in bytes from the header's `data_offset`.
        at: where in the file this entry stands.
    """

    name: str
    ne: tuple[int, ...]
    number: int
    offset: int
    at: int = 0

    @property
    def kind(self) -> QuantType:
        """Raises KeyError for a number that ggml does not know; `problems_of` tells."""
        return TYPES[self.number]

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions in numpy's order, slowest first."""
        return self.ne[::-1]

    @property
    def values(self) -> int:
        count = 1
        for dimension in self.ne:
            count *= dimension
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of its data.

        Raises:
            KeyError: unknown number.
            ValueError: rows that do not hold whole blocks.
        """
        return tensor_bytes(self.kind, self.ne)


@dataclass(frozen=True)
class Header:
    """What stands before the data of a GGUF file.

    Attributes:
        file: its name, for messages.
        version: of the format, 2 or 3.
        metadata: by key, in the file's order.
        tensors: in the file's order.
        alignment: of tensor data, in bytes.
        data_offset: where tensor data begins.
        size: bytes of the file, None where unknown.
    """

    file: str
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    size: int | None = None


@dataclass
class _Cursor:
    """Reads forward through `read_at`, a chunk at a time."""

    file: str
    read_at: ReadAt
    size: int | None
    position: int = 0
    kept: int = 0
    nested: int = 0
    _start: int = 0
    _chunk: bytes = field(default=b"", repr=False)

    def fail(self, found: str, right: str, at: int | None = None) -> NoReturn:
        where = self.position if at is None else at
        raise GgufError(f"{self.file}: at byte {where}: {found}; {right}")

    def left(self) -> int:
        """Bytes that may still come."""
        return min(self.size if self.size is not None else MAX_HEADER, MAX_HEADER) - self.position

    def need(self, length: int, what: str) -> None:
        """Refuse a length that the file cannot hold before anything is read."""
        if self.position + length > MAX_HEADER:
            self.fail(f"{what} would make the header longer than {MAX_HEADER} bytes",
                      "the file is damaged")  # fmt: skip
        if length > self.left():
            missing, needed = length - self.left(), self.position + length
            self.fail(
                f"the file ends {missing} bytes short of {what}",
                f"{self.size} bytes are there, at least {needed} are needed",
            )

    def take(self, length: int, what: str) -> bytes:
        self.need(length, what)
        begin = self.position - self._start
        if begin + length > len(self._chunk):
            self._fill(length, what)
            begin = 0
        self.position += length
        return self._chunk[begin : begin + length]

    def skip(self, length: int, what: str) -> None:
        self.need(length, what)
        self.position += length
        if self.position > self._start + len(self._chunk):
            self._start, self._chunk = self.position, b""

    def skip_strings(self, count: int, what: str) -> None:
        """Past `count` strings, a chunk at a time: a vocabulary has hundreds of thousands."""
        while count:
            length = int.from_bytes(self.take(8, what), "little")
            self.skip(length, what)
            count -= 1
            position, end, chunk = self.position - self._start, len(self._chunk) - 8, self._chunk
            while count and position <= end:
                following = position + 8 + int.from_bytes(chunk[position : position + 8], "little")
                if following > end + 8:
                    break
                position, count = following, count - 1
            self.position = self._start + position

    def _fill(self, length: int, what: str) -> None:
        chunk = bytes(self.read_at(self.position, min(max(length, CHUNK), self.left())))
        if len(chunk) < length:
            missing = length - len(chunk)
            self.fail(f"the file ends {missing} bytes short of {what}",
                      f"{self.position + len(chunk)} bytes are there")  # fmt: skip
        self._start, self._chunk = self.position, chunk

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, least: int) -> int:
        """A count of things that take `least` bytes each."""
        at = self.position
        count = self.u64(f"the number of {what}")
        if count > MAX_COUNT:
            self.fail(f"{count} {what}", f"at most {MAX_COUNT} are allowed", at)
        self.need(count * least, f"{count} {what}")
        return count

    def string(self, what: str, most: int) -> str:
        at = self.position
        length = self.u64(f"the length of {what}")
        if length > most:
            self.fail(f"{what} of {length} bytes", f"at most {most} are allowed", at)
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            return self.fail(f"{what} is no UTF-8 ({error.reason})", f"found {raw[:32]!r}", at + 8)


def read_file(path: str | os.PathLike[str]) -> Header:
    """The header of a local file.

    Raises:
        GgufError: it is no GGUF file that can be read, with the byte and what was found there.
        OSError: it cannot be opened.
    """
    with Path(path).open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read_header(read_at, file=str(path), size=os.fstat(file.fileno()).st_size)


def read_bytes(data: bytes, *, file: str = "given bytes", size: int | None = None) -> Header:
    """The header in `data`, the beginning of a file of `size` bytes (default: unknown)."""
    return read_header(lambda offset, length: data[offset : offset + length], file=file, size=size)


def read_header(read_at: ReadAt, *, file: str, size: int | None = None) -> Header:
    """The header of a file that `read_at` reads.

    Args:
        read_at: gives up to so many bytes at an offset.
        file: its name, for messages.
        size: its bytes, where known: lengths in it are then checked before they are believed.

    Raises:
        GgufError: with the file, the byte, what was found and what would be right.
    """
    cursor = _Cursor(file, read_at, size)
    version = _version(cursor)
    tensors = cursor.count("tensors", 8 + 4 + 4 + 8)
    entries = cursor.count("metadata entries", 8 + 4 + 1)
    metadata = _metadata(cursor, entries)
    alignment = _alignment(cursor, metadata)
    infos = tuple(_tensor(cursor) for _ in range(tensors))
    data = -(-cursor.position // alignment) * alignment
    return Header(file, version, metadata, infos, alignment, data, size)


def _version(cursor: _Cursor) -> int:
    if cursor.size == 0:
        raise GgufError(f"{cursor.file}: the file is empty (0 bytes); copy or download it again")
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        hint = " (all zeros: a download that never wrote)" if not any(magic) else ""
        cursor.fail(f"no GGUF file: it begins with {magic!r}{hint}", f"{MAGIC!r} is right", 0)
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        cursor.fail("a big-endian file", "only little endian can be read: convert it", 4)
    if version not in VERSIONS:
        cursor.fail(f"GGUF version {version}", "versions 2 and 3 can be read", 4)
    return version


def _metadata(cursor: _Cursor, entries: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(entries):
        at = cursor.position
        key = cursor.string("a metadata key", MAX_KEY)
        if key in metadata:
            cursor.fail(f"metadata key {key} for the second time", "each may stand once", at)
        metadata[key] = _value(cursor, cursor.u32(f"the type of {key}"), key, 0)
    return metadata


def _value(cursor: _Cursor, kind: int, key: str, depth: int) -> Value:
    if kind in SCALARS:
        name, code, size = SCALARS[kind]
        value: int | float = struct.unpack(code, cursor.take(size, f"the value of {key}"))[0]
        return bool(value) if name == "bool" else value
    if kind == STRING:
        return cursor.string(f"the value of {key}", MAX_STRING)
    if kind == ARRAY:
        return _array(cursor, key, depth + 1)
    return cursor.fail(f"value type {kind} of {key}", "0 to 12 are known", cursor.position - 4)


def _array(cursor: _Cursor, key: str, depth: int) -> Array:
    at = cursor.position
    kind = cursor.u32(f"the element type of {key}")
    length = cursor.u64(f"the length of {key}")
    if depth > MAX_DEPTH:
        cursor.fail(f"{key} nests arrays {depth} deep", f"at most {MAX_DEPTH} are allowed", at)
    if kind not in SCALARS and kind not in (STRING, ARRAY):
        cursor.fail(f"element type {kind} of {key}", "0 to 12 are known", at)
    if kind == ARRAY:
        cursor.nested += length
        if cursor.nested > MAX_NESTED:
            cursor.fail(f"{key} has {length} arrays in it", f"at most {MAX_NESTED} are allowed", at)
    if kind == STRING and length > MAX_STRINGS:
        cursor.fail(f"{key} has {length} strings", f"at most {MAX_STRINGS} are allowed", at)
    name, _, size = SCALARS.get(kind, ("string" if kind == STRING else "array", "", 8))
    cursor.need(length * size, f"the {length} values of {key}")
    if length <= min(KEEP_VALUES, KEEP_TOTAL - cursor.kept):
        cursor.kept += length
        values = tuple(_value(cursor, kind, key, depth) for _ in range(length))
        return Array(name, length, values)
    _pass_over(cursor, kind, length, key, depth)
    return Array(name, length, None)


def _pass_over(cursor: _Cursor, kind: int, length: int, key: str, depth: int) -> None:
    """Past the values of a long array, none of which is kept."""
    what = f"the values of {key}"
    if kind in SCALARS:
        cursor.skip(length * SCALARS[kind][2], what)
    elif kind == STRING:
        cursor.skip_strings(length, what)
    else:
        for _ in range(length):
            _array(cursor, key, depth + 1)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    good = isinstance(alignment, int) and 8 <= alignment <= 1 << 20
    if not good or int(alignment) & (int(alignment) - 1):  # type: ignore[arg-type]
        cursor.fail(f"general.alignment is {alignment}", "a power of two from 8 is right")
    return int(alignment)  # type: ignore[arg-type]


def _tensor(cursor: _Cursor) -> TensorInfo:
    at = cursor.position
    name = cursor.string("a tensor's name", MAX_NAME)
    dimensions = cursor.u32(f"the dimensions of {name}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        cursor.fail(f"tensor {name} of {dimensions} dimensions", f"1 to {MAX_DIMENSIONS} are right",
                    at)  # fmt: skip
    ne = tuple(cursor.u64(f"the dimensions of {name}") for _ in range(dimensions))
    number = cursor.u32(f"the type of {name}")
    return TensorInfo(name, ne, number, cursor.u64(f"the offset of {name}"), at)
