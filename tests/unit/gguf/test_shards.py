"""Every file of a model is found from any of them, and whatever is wrong with one is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.reader import ReadAt, read_file
from glm5_kernel.gguf.shards import LocalFiles, open_model, shard_paths

from tests.unit.gguf.support import SMALL, metadata_of, tensors_of, write_model, write_sparse

Rows = list[tuple[str, tuple[int, ...], int]]


def test_one_file(tmp_path: Path) -> None:
    (path,) = write_model(tmp_path, SMALL)
    model = open_model(path)
    assert model.paths == (str(path),)
    assert len(model.tensors) == len(tensors_of(SMALL))
    assert model.size == path.stat().st_size
    located = model.tensors["output.weight"]
    header = read_file(path)
    assert located.offset == header.data_offset + located.info.offset


@pytest.mark.parametrize("given", [0, 1, 3])
def test_a_split_is_found_from_any_shard(tmp_path: Path, given: int) -> None:
    """The first holds metadata alone."""
    paths = write_model(tmp_path, SMALL, split=4)
    model = open_model(paths[given])
    assert model.paths == tuple(map(str, paths))
    assert [row[0] for row in tensors_of(SMALL)] == list(model.tensors)
    assert model.metadata["general.architecture"] == "glm-dsa"
    assert not model.shards[0].tensors
    assert {located.shard for located in model.tensors.values()} == {1, 2, 3}


def test_files_need_not_be_local(tmp_path: Path) -> None:
    """Anything that knows sizes and reads bytes will do, such as SFTP."""
    paths = write_model(tmp_path, SMALL, split=3)

    class Remote:
        def size(self, path: str) -> int | None:
            return LocalFiles().size(str(tmp_path) + path)

        def read_at(self, path: str) -> ReadAt:
            return LocalFiles().read_at(str(tmp_path) + path)

    model = open_model(f"/{paths[2].name}", Remote())
    assert model.paths == tuple(f"/{path.name}" for path in paths)
    assert len(model.tensors) == len(tensors_of(SMALL))


def test_names_of_shards() -> None:
    assert shard_paths("/m/x-00002-of-00003.gguf") == tuple(
        f"/m/x-0000{n}-of-00003.gguf" for n in (1, 2, 3)
    )
    assert shard_paths("x.gguf") == ("x.gguf",)
    with pytest.raises(GgufError, match="shard 4 of 3 cannot be; 1 to 3 are right"):
        shard_paths("x-00004-of-00003.gguf")
    with pytest.raises(GgufError, match="shard 1 of 99999 cannot be"):
        shard_paths("x-00001-of-99999.gguf")


def rewritten(path: Path, rows: Rows, **metadata: Any) -> None:  # noqa: ANN401
    """The file again with other tensors or metadata."""
    old = {
        key: value
        for key, value in read_file(path).metadata.items()
        if isinstance(value, int | str)
    }
    write_sparse(path, old | metadata, rows)


def rows_of(path: Path) -> Rows:
    return [(info.name, info.ne, info.number) for info in read_file(path).tensors]


def cut(paths: list[Path]) -> None:
    with paths[2].open("r+b") as file:
        file.truncate(paths[2].stat().st_size - 12_345)


def cut_twice(paths: list[Path]) -> None:
    cut(paths)
    with paths[3].open("r+b") as file:
        file.truncate(paths[3].stat().st_size - 99)


def cut_in_the_header(paths: list[Path]) -> None:
    with paths[1].open("r+b") as file:
        file.truncate(100)


def twice_in_two(paths: list[Path]) -> None:
    rows = rows_of(paths[2])
    rewritten(paths[2], [*rows[:-1], rows_of(paths[1])[0]])


def twice_in_one(paths: list[Path]) -> None:
    rows = rows_of(paths[2])
    rewritten(paths[2], [*rows[:-1], rows[0]])


def unknown_type(paths: list[Path]) -> None:
    rows = rows_of(paths[2])
    rewritten(paths[2], [*rows[:-1], (*rows[-1][:2], 97)])


def no_dimension(paths: list[Path]) -> None:
    rows = rows_of(paths[2])
    rewritten(paths[2], [*rows[:-1], (rows[-1][0], (0, 4), 0)])


def half_a_block(paths: list[Path]) -> None:
    rows = rows_of(paths[2])
    rewritten(paths[2], [*rows[:-1], (rows[-1][0], (192, 4), 0)])
    data = paths[2].read_bytes()
    last = rows[-1][0].encode()
    at = data.index(last) + len(last) + 4 + 16
    paths[2].write_bytes(data[:at] + (12).to_bytes(4, "little") + data[at + 4 :])


def shifted(paths: list[Path]) -> None:
    data = paths[2].read_bytes()
    last = rows_of(paths[2])[1][0].encode()
    ne = len(rows_of(paths[2])[1][1])
    at = data.index(last) + len(last) + 4 + 8 * ne + 4
    paths[2].write_bytes(data[:at] + (64).to_bytes(8, "little") + data[at + 8 :])


CASES: dict[str, tuple[Callable[[list[Path]], object], list[str]]] = {
    "missing": (lambda p: p[1].unlink(),
                ["1 of 4 shards missing: m-00002-of-00004.gguf; copy them beside the others"]),
    "two missing": (lambda p: (p[0].unlink(), p[2].unlink()),
                    ["2 of 4 shards missing: m-00001-of-00004.gguf, m-00003-of-00004.gguf"]),
    "empty": (lambda p: p[2].write_bytes(b""), ["00003-of-00004.gguf: the file is empty (0 bytes"]),
    "zeros": (lambda p: p[2].write_bytes(bytes(4096)), ["00003-of-00004.gguf: at byte 0", "zeros"]),
    "cut": (cut, ["m-00003-of-00004.gguf: cut short: 12345 bytes are missing", "the first"]),
    "two cut": (cut_twice, ["12345 bytes are missing", "00004-of-00004.gguf: cut short: 99"]),
    "cut in the header": (cut_in_the_header, ["m-00002-of-00004.gguf: at byte", "the file ends"]),
    "twice in two": (twice_in_two, ["stands in", "m-00002-of-00004.gguf too; each may stand once"]),
    "twice in one": (twice_in_one, ["stands 2 times; each may stand once"]),
    "unknown type": (unknown_type, ["quantisation number 97 is unknown; known are 0 F32, 1 F16"]),
    "no dimension": (no_dimension, ["dimensions [0, 4]: none may be 0"]),
    "half a block": (half_a_block, ["Q4_K has blocks of 256 values, but a row has 192"]),
    "shifted": (shifted, ["its data begin at offset 64, but"]),
    "architecture": (lambda p: rewritten(p[0], [], **{"general.architecture": "llama"}),
                     ["the architecture is 'llama' (general.architecture); glm-dsa or deepseek2"]),
    "another split's": (lambda p: rewritten(p[2], rows_of(p[2]), **{"split.count": 5}),
                        ["m-00003-of-00004.gguf: split.count is 5, but 4 is right for shard 3"]),
    "another's name": (lambda p: shutil.copy(p[1], p[2]),
                       ["m-00003-of-00004.gguf: split.no is 1, but 2 is right for shard 3 of 4"]),
    "another model's": (lambda p: rewritten(p[2], [], **{"general.architecture": "llama"}),
                        ["general.architecture is 'llama', but 'glm-dsa' is right for shard 3"]),
    "count": (lambda p: rewritten(p[3], rows_of(p[3])[:-1]),
              ["split.tensors.count is", "but the 4 shards hold"]),
    "whole file by a shard's name": (
        lambda p: write_sparse(p[1], metadata_of(SMALL), tensors_of(SMALL)),
        ["m-00002-of-00004.gguf: split.no is missing, but 1 is right"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_split_that_cannot_work(tmp_path: Path, name: str) -> None:
    paths = write_model(tmp_path, SMALL, split=4)
    spoil, messages = CASES[name]
    spoil(paths)
    with pytest.raises(GgufError) as caught:
        open_model(paths[3])
    for message in messages:
        assert message in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_a_shard_alone_under_another_name(tmp_path: Path) -> None:
    paths = write_model(tmp_path, SMALL, split=4)
    alone = paths[2].rename(tmp_path / "model.gguf")
    with pytest.raises(GgufError, match=r"this is shard 3 of 4 .* -00003-of-00004.gguf"):
        open_model(alone)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="there is no such file"):
        open_model(tmp_path / "m.gguf")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "m.gguf", metadata_of(SMALL), [])
    with pytest.raises(GgufError, match="no shard holds any tensor"):
        open_model(path)


def test_an_architecture_that_is_not_stated(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "m.gguf", {"x": 1}, [("a", (4,), 0)])
    with pytest.raises(GgufError, match="the architecture is not stated"):
        open_model(path)
