"""What makes the tensors of one file unreadable: types, dimensions, offsets, a file cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from glm5_kernel.gguf.errors import listed, some_of
from glm5_kernel.gguf.reader import Header, TensorInfo
from glm5_kernel.gguf.types import TYPES


def problems_of(header: Header) -> list[str]:
    """Everything wrong with the tensors of a file, one sentence each, with its name.

    Unknown types and damaged dimensions are told first; where there are any, nothing is known about
    the offsets, and they are not judged.
    """
    found = [*some_of(_entries(header)), *some_of(_twice(header))]
    return found or list(_places(header))


def _entries(header: Header) -> Iterator[str]:
    for info in header.tensors:
        if (problem := _entry(info)) is not None:
            yield f"{header.file}: tensor {info.name} (entry at byte {info.at}): {problem}"


def _entry(info: TensorInfo) -> str | None:
    if 0 in info.ne:
        return f"dimensions {list(info.ne)}: none may be 0"
    if info.values >= 1 << 63:
        return f"dimensions {list(info.ne)}: more than 2^63 values; the header is damaged"
    if info.number not in TYPES:
        known = listed((f"{kind.number} {kind.name}" for kind in TYPES.values()), most=99)
        return f"quantisation number {info.number} is unknown; known are {known}"
    kind = info.kind
    if info.ne[0] % kind.block:
        return (
            f"{kind.name} has blocks of {kind.block} values, but a row has {info.ne[0]}; "
            f"a multiple of {kind.block} is right"
        )
    return None


def _twice(header: Header) -> Iterator[str]:
    for name, count in Counter(info.name for info in header.tensors).items():
        if count > 1:
            yield f"{header.file}: tensor {name} stands {count} times; each may stand once"


def _places(header: Header) -> Iterator[str]:
    """Tensors lie one after the other, each at a multiple of the alignment (ggml demands both)."""
    right, end = 0, 0
    for info in header.tensors:
        if info.offset != right:
            yield (
                f"{header.file}: tensor {info.name}: its data begin at offset {info.offset}, but "
                f"{right} is right, after the one before it, aligned to {header.alignment}"
            )
            return
        end = right + info.nbytes
        right = -(-end // header.alignment) * header.alignment
    needed = header.data_offset + end if header.tensors else 0
    if header.size is not None and header.size < needed:
        first = next(
            info for info in header.tensors
            if header.data_offset + info.offset + info.nbytes > header.size
        )  # fmt: skip
        yield (
            f"{header.file}: cut short: {needed - header.size} bytes are missing ({header.size} "
            f"are there, {needed} are needed; tensor {first.name} is the first that is not whole); "
            "copy or download it again"
        )
