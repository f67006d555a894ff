"""All files of a model: found from any one of them, read and checked together.

A split has files `NAME-00001-of-00009.gguf` and in each the metadata `split.no` (from 0),
`split.count` and `split.tensors.count`; the first holds the model's metadata and may hold no tensor
(llama.cpp's gguf-split).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from glm5_kernel.gguf.checks import problems_of
from glm5_kernel.gguf.errors import GgufError, listed, some_of
from glm5_kernel.gguf.reader import Header, ReadAt, TensorInfo, Value, read_header

SPLIT_NAME = re.compile(
    r"(?P<stem>.*)-(?P<number>[0-9]{5,9})-of-(?P<count>[0-9]{5,9})\.gguf", re.DOTALL
)
"""To be matched as a whole."""
MAX_SHARDS = 1_000
ARCHITECTURES = ("glm-dsa", "deepseek2")


class Files(Protocol):
    """Where files lie: this machine, or a host over SFTP."""

    def size(self, path: str) -> int | None:
        """Bytes of a file, None where there is none."""
        ...

    def read_at(self, path: str) -> ReadAt:
        """What reads it."""
        ...


class LocalFiles:
    """The files of this machine."""

    def size(self, path: str) -> int | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(found.st_mode):
            raise GgufError(f"{path}: this is a folder; name a .gguf file in it")
        if not stat.S_ISREG(found.st_mode):
            raise GgufError(f"{path}: no regular file; a .gguf file is right")
        return found.st_size

    def read_at(self, path: str) -> ReadAt:
        def read(offset: int, length: int) -> bytes:
            with Path(path).open("rb") as file:
                return os.pread(file.fileno(), length, offset)

        return read


@dataclass(frozen=True)
class Located:
    """A tensor and where its data lie.

    Attributes:
        info: its entry.
        shard: index into `Model.shards`.
        offset: of its data from the beginning of that file, in bytes.
    """

    info: TensorInfo
    shard: int
    offset: int


@dataclass(frozen=True)
class Model:
    """A model in one file or several, found whole.

    Attributes:
        paths: the files, first to last.
        shards: their headers.
        metadata: the first file's.
        tensors: by name, in the order of the files.
    """

    paths: tuple[str, ...]
    shards: tuple[Header, ...]
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Located]

    @property
    def size(self) -> int:
        """Bytes of all files; 0 for those of unknown size."""
        return sum(shard.size or 0 for shard in self.shards)


def shard_paths(path: str) -> tuple[str, ...]:
    """The files of the split that `path` belongs to by its name, first to last.

    Raises:
        GgufError: numbers in the name that cannot be.
    """
    folder, name = os.path.split(path)
    match = SPLIT_NAME.fullmatch(name)
    if match is None:
        return (path,)
    digits, number, count = len(match["number"]), int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_SHARDS:
        raise GgufError(
            f"{path}: shard {number} of {count} cannot be; 1 to {min(count, MAX_SHARDS)} are right"
        )
    return tuple(
        os.path.join(folder, f"{match['stem']}-{n:0{digits}}-of-{match['count']}.gguf")
        for n in range(1, count + 1)
    )


def open_model(
    path: str | os.PathLike[str],
    files: Files | None = None,
    *,
    architectures: tuple[str, ...] = ARCHITECTURES,
    readers: int = 4,
) -> Model:
    """Read and check every file of a model, from any one of them.

    Args:
        path: any file of the model.
        files: where it lies; this machine if None.
        architectures: that will do.
        readers: files read at the same time; 1 where `files` may not be called by several threads.

    Raises:
        GgufError: all that is wrong: shards missing, cut short or of another model, tensors twice
            or of unknown type, another architecture, …
    """
    files = LocalFiles() if files is None else files
    paths = shard_paths(str(path))
    sizes = [files.size(each) for each in paths]
    missing = _missing(paths, sizes)
    if missing:
        raise GgufError(missing)
    shards = _headers(paths, sizes, files, readers)
    _raise_if(_split_problems(paths, shards))
    _raise_if(_architecture_problem(shards[0], architectures))
    _raise_if(problem for shard in shards for problem in problems_of(shard))
    return _assembled(paths, shards)


def _raise_if(problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        raise GgufError(found)


def _missing(paths: tuple[str, ...], sizes: list[int | None]) -> list[str]:
    if len(paths) == 1:
        return [f"{paths[0]}: there is no such file"] if sizes[0] is None else []
    absent = [str(n) for n, size in enumerate(sizes, 1) if size is None]
    if not absent:
        return []
    folder = os.path.dirname(paths[0]) or "."
    names = listed(
        os.path.basename(each) for each, size in zip(paths, sizes, strict=True) if size is None
    )
    return [
        f"{folder}: {len(absent)} of {len(paths)} shards missing: {names}; "
        "copy them beside the others"
    ]


def _headers(
    paths: tuple[str, ...], sizes: list[int | None], files: Files, readers: int
) -> tuple[Header, ...]:
    """All headers; where several cannot be read, all are named."""

    def one(index: int) -> Header | GgufError:
        try:
            return read_header(files.read_at(paths[index]), file=paths[index], size=sizes[index])
        except GgufError as error:
            return error

    with ThreadPoolExecutor(max(1, readers)) as pool:
        results = list(pool.map(one, range(len(paths))))
    _raise_if(text for each in results if isinstance(each, GgufError) for text in each.problems)
    return tuple(each for each in results if isinstance(each, Header))


def _split_problems(paths: tuple[str, ...], shards: tuple[Header, ...]) -> list[str]:
    if len(paths) == 1:
        return _lone_shard(shards[0])
    problems = [problem for n, shard in enumerate(shards) for problem in _shard(n, shards, shard)]
    if problems:
        return problems
    stated = shards[0].metadata.get("split.tensors.count")
    found = sum(len(shard.tensors) for shard in shards)
    if stated is not None and stated != found:
        return [
            f"{paths[0]}: split.tensors.count is {stated}, but the {len(shards)} shards hold "
            f"{found} tensors; they are not of one split"
        ]
    return []


def _lone_shard(header: Header) -> list[str]:
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return []
    number = header.metadata.get("split.no", 0)
    if not isinstance(number, int):
        return [f"{header.file}: split.no is {number!r:.60}; a whole number is right"]
    number += 1
    return [
        f"{header.file}: this is shard {number} of {count} (split.count), but its name does not "
        f"end in -{number:05}-of-{count:05}.gguf; give the shards the names they were made with"
    ]


def _shard(index: int, shards: tuple[Header, ...], shard: Header) -> list[str]:
    """A shard whose metadata belie its name, or that is of another model than the first."""
    right = {"split.no": index, "split.count": len(shards)}
    first = shards[0].metadata
    for key in ("split.tensors.count", "general.architecture"):
        if index and key in first and key in shard.metadata:
            right[key] = first[key]  # type: ignore[assignment]
    problems = []
    for key, value in right.items():
        found = shard.metadata.get(key)
        if found != value:
            stated = "missing" if found is None else repr(found)
            problems.append(
                f"{shard.file}: {key} is {stated}, but {value!r} is right for shard {index + 1} of "
                f"{len(shards)}; the file is of another split or has another's name"
            )
    return problems


def _architecture_problem(first: Header, architectures: tuple[str, ...]) -> list[str]:
    found = first.metadata.get("general.architecture")
    if found in architectures:
        return []
    stated = "not stated" if found is None else repr(found)
    return [
        f"{first.file}: the architecture is {stated} (general.architecture); "
        f"{' or '.join(architectures)} is what this adapter loads"
    ]


def _assembled(paths: tuple[str, ...], shards: tuple[Header, ...]) -> Model:
    tensors: dict[str, Located] = {}
    problems = []
    for index, shard in enumerate(shards):
        for info in shard.tensors:
            if info.name in tensors:
                other = paths[tensors[info.name].shard]
                problems.append(
                    f"{shard.file}: tensor {info.name} stands in {other} too; each may stand once"
                )
            tensors[info.name] = Located(info, index, shard.data_offset + info.offset)
    if not tensors:
        problems.append(f"{paths[0]}: no shard holds any tensor; a model has some")
    _raise_if(some_of(problems))
    return Model(paths, shards, shards[0].metadata, tensors)
