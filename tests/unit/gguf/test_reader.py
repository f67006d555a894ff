"""Headers: what is read, and that damage of any kind is told and never believed."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.reader import (
    KEEP_VALUES,
    MAX_HEADER,
    Array,
    Header,
    TensorInfo,
    read_bytes,
    read_file,
    read_header,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gguf.support import header_bytes, text

TENSORS = [
    TensorInfo("a.weight", (256, 2), 12, 0),
    TensorInfo("b", (3,), 0, 288),
    TensorInfo("c", (32, 2, 3), 8, 320),
]
METADATA: dict[str, Any] = {
    "general.architecture": "glm-dsa",
    "yes": True,
    "whole": 7,
    "long": 1 << 40,
    "number": 0.5,
    "list": [1, 2, 3],
    "flags": [True, False],
    "words": ["a", "bc", ""],
    "nested": [[1, 2], [3]],
    "nothing": [],
}


@pytest.mark.parametrize("version", [2, 3])
def test_everything_is_read(version: int) -> None:
    data = header_bytes(METADATA, TENSORS, version)
    header = read_bytes(data)
    assert header.version == version
    assert header.metadata["whole"] == 7
    assert header.metadata["long"] == 1 << 40
    assert header.metadata["yes"] is True
    assert header.metadata["number"] == 0.5
    assert header.metadata["list"] == Array("uint32", 3, (1, 2, 3))
    assert header.metadata["flags"] == Array("bool", 2, (True, False))
    assert header.metadata["words"] == Array("string", 3, ("a", "bc", ""))
    nested = Array("array", 2, (Array("uint32", 2, (1, 2)), Array("uint32", 1, (3,))))
    assert header.metadata["nested"] == nested
    assert header.metadata["nothing"] == Array("uint32", 0, ())
    assert [(t.name, t.ne, t.number, t.offset) for t in header.tensors] == [
        (t.name, t.ne, t.number, t.offset) for t in TENSORS
    ]
    assert header.tensors[0].shape == (2, 256)
    assert header.tensors[0].nbytes == 288
    assert header.data_offset == len(data)
    assert data[header.tensors[1].at + 8 :].startswith(b"b")


def test_every_kind_of_number() -> None:
    kinds = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q",
             12: "<d"}  # fmt: skip
    body = b"".join(
        text(f"k{kind}") + struct.pack("<I", kind) + struct.pack(code, 5)
        for kind, code in kinds.items()
    )
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(kinds)) + body
    assert list(read_bytes(data).metadata.values()) == [5] * len(kinds)


def test_a_file_is_read_as_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = header_bytes(METADATA, TENSORS)
    path.write_bytes(data + bytes(600))
    header = read_file(path)
    assert header.size == len(data) + 600
    assert header.tensors == read_bytes(data).tensors


def test_alignment_moves_the_data() -> None:
    data = header_bytes({"general.alignment": 4096}, TENSORS, alignment=4096)
    assert read_bytes(data).data_offset == 4096


class Counting:
    """Given bytes that count what is asked of them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.calls, self.most = data, 0, 0

    def __call__(self, offset: int, length: int) -> bytes:
        self.calls += 1
        self.most = max(self.most, length)
        return self.data[offset : offset + length]


def test_a_vocabulary_is_passed_over_in_few_round_trips() -> None:
    words = [f"token{n}" * (n % 7) for n in range(150_000)]
    data = header_bytes({"tokens": words, "after": 1, "types": [1] * 150_000}, TENSORS)
    source = Counting(data)
    header = read_header(source, file="m", size=len(data))
    assert header.metadata["tokens"] == Array("string", 150_000, None)
    assert header.metadata["types"] == Array("uint32", 150_000, None)
    assert header.metadata["after"] == 1
    assert [t.name for t in header.tensors] == ["a.weight", "b", "c"]
    assert source.calls <= len(data) // (1 << 20) + 3


def test_many_arrays_are_not_all_kept() -> None:
    """A file of small values must not take many times its size in memory."""
    rows = [[[1] * KEEP_VALUES for _ in range(64)] for _ in range(8)]
    header = read_bytes(header_bytes({f"k{n}": row for n, row in enumerate(rows)}, []))
    kept = [
        inner.values is not None
        for row in header.metadata.values()
        if isinstance(row, Array) and row.values
        for inner in row.values
        if isinstance(inner, Array)
    ]
    assert 0 < sum(kept) < len(kept)


GOOD = header_bytes(METADATA, TENSORS)


def patched(offset: int, data: bytes) -> bytes:
    return GOOD[:offset] + data + GOOD[offset + len(data) :]


HEAD = struct.pack("<IQQ", 3, 0, 1)
DAMAGED = {
    "empty": (b"", "the file is empty (0 bytes); copy or download it again"),
    "other file": (b"PK\3\4" + bytes(99),
                   "at byte 0: no GGUF file: it begins with b'PK\\x03\\x04'; b'GGUF' is right"),
    "zeros": (bytes(99), "all zeros: a download that never wrote"),
    "version 1": (patched(4, struct.pack("<I", 1)), "at byte 4: GGUF version 1; versions 2 and 3"),
    "version 4": (patched(4, struct.pack("<I", 4)), "GGUF version 4"),
    "big endian": (patched(4, struct.pack(">I", 3)), "a big-endian file; only little endian"),
    "many tensors": (patched(8, b"\xff" * 8), "at byte 8: 18446744073709551615 tensors; at most"),
    "many entries": (patched(16, struct.pack("<Q", 1 << 16)), "short of 65536 metadata entries"),
    "long key": (b"GGUF" + HEAD + struct.pack("<Q", 1 << 62) + bytes(9),
                 "a metadata key of 4611686018427387904 bytes; at most 65535"),
    "short": (GOOD[:-40], "the file ends"),
    "half": (GOOD[: len(GOOD) // 2], "are there, at least"),
    "value type": (b"GGUF" + HEAD + text("k") + struct.pack("<II", 13, 0), "value type 13 of k; 0"),
    "element type": (b"GGUF" + HEAD + text("k") + struct.pack("<IIQ", 9, 77, 0) + bytes(9),
                     "element type 77 of k"),
    "long array": (b"GGUF" + HEAD + text("k") + struct.pack("<IIQ", 9, 4, 1 << 60),
                   "the 1152921504606846976 values of k would make the header longer than"),
    "long string": (b"GGUF" + HEAD + text("k") + struct.pack("<IQ", 8, 1 << 60),
                    "the value of k of 1152921504606846976 bytes; at most"),
    "no text": (b"GGUF" + HEAD + struct.pack("<Q", 1) + b"\xff" + bytes(20),
                "a metadata key is no UTF-8"),
    "deep": (b"GGUF" + HEAD + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9
             + bytes(20), "nests arrays 5 deep"),
    "twice": (GOOD[:8] + struct.pack("<QQ", 0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2,
              "metadata key k for the second time"),
    "alignment": (header_bytes({"general.alignment": 33}, []), "general.alignment is 33; a power"),
    "alignment kind": (header_bytes({"general.alignment": "x"}, []), "general.alignment is x"),
    "dimensions": (header_bytes({}, [TensorInfo("t", (1,) * 5, 0, 0)]),
                   "tensor t of 5 dimensions; 1 to 4 are right"),
    "no dimensions": (header_bytes({}, [TensorInfo("t", (), 0, 0)]) + bytes(8), "of 0 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_told(name: str) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(GgufError) as caught:
        read_bytes(data, file="x.gguf", size=len(data))
    assert str(caught.value).startswith("x.gguf: ")
    assert message in str(caught.value)


def test_every_cut_is_told() -> None:
    for end in range(len(GOOD) - 31):
        with pytest.raises(GgufError, match=r"ends|empty"):
            read_bytes(GOOD[:end], size=end)


@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_never_crash(data: bytes, sized: bool) -> None:
    result = attempt(b"GGUF\3\0\0\0" + data, sized)
    assert isinstance(result, Header) or result.problems


@given(st.data())
def test_damaged_headers_never_crash(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 2, 9, 127, 128, 255]))
    result = attempt(bytes(damaged))
    assert isinstance(result, Header | GgufError)


def attempt(data: bytes, sized: bool = True) -> Header | GgufError:
    try:
        return read_bytes(data, size=len(data) if sized else None)
    except GgufError as error:
        return error


@given(st.binary(min_size=8, max_size=8), st.sampled_from([8, 16, 24, 63, 90]))
def test_no_length_is_believed(length: bytes, at: int) -> None:
    """Memory stays within a few megabytes whatever a length says, with and without a size."""
    damaged = GOOD[:at] + length + GOOD[at + 8 :]
    tracemalloc.start()
    try:
        attempt(damaged)
        attempt(damaged, sized=False)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_source_without_end_is_bounded() -> None:
    """A callback that goes on for ever: the header ends at its limit."""
    asked = []
    start = b"GGUF" + HEAD + text("k") + struct.pack("<IIQ", 9, 8, 1 << 22)
    record = struct.pack("<Q", 1000) + bytes(1000)

    def endless(offset: int, length: int) -> bytes:
        asked.append(offset + length)
        skipped = max(0, offset - len(start))
        rest = record[skipped % 1008 :] + record * (length // 1008 + 1)
        return (start[offset:] + rest)[:length]

    with pytest.raises(GgufError, match="longer than"):
        read_header(endless, file="x")
    assert max(asked) <= MAX_HEADER
