"""Bytes of files, read by several threads into a few buffers.

Reading goes by `preadv` straight into page-locked memory, whose copy to a GPU then runs beside the
next reads; a memory map would fault page by page in one thread. Never more than the buffers and
what is being decoded is held, whatever the size of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch

from glm5_kernel.gguf.decoding import Bytes
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.slicing import Run

CHUNK = 32 << 20
"""Bytes read at a time."""
BUFFERS = 8
THREADS = 8


class OpenFiles:
    """The files of a model, open for reading at any place by any thread."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._descriptors: list[int] = []

    def __enter__(self) -> OpenFiles:
        try:
            for path in self._paths:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def read(self, shard: int, offset: int, into: Bytes) -> None:
        """Fill `into` (uint8, contiguous) with what lies at `offset` of a file.

        Raises:
            GgufError: the file has become shorter than its header was when it was read, or the
                disk under it fails.
        """
        view, done = memoryview(into.data).cast("B"), 0
        while done < len(view):
            try:
                got = os.preadv(self._descriptors[shard], [view[done:]], offset + done)
            except OSError as error:
                raise GgufError(
                    f"{self._paths[shard]}: cannot be read at byte {offset + done}: "
                    f"{error.strerror}; is its disk or its network sound?"
                ) from error
            if not got:
                raise GgufError(
                    f"{self._paths[shard]}: ends at byte {offset + done} while it is loaded; "
                    "was it replaced?"
                )
            done += got

    def read_runs(self, shard: int, base: int, runs: Iterable[Run], into: Bytes) -> None:
        """Fill parts of `into` (uint8 [n]) with runs of a tensor whose data begin at `base`."""
        for run in runs:
            self.read(shard, base + run.offset, into[run.to : run.to + run.nbytes])


class Buffer:
    """Memory that is read into, page-locked where a GPU copies from it.

    `prepare` and `copied_from` belong to the thread whose GPU it is: a call to CUDA from another
    one would make a context on the first GPU there.
    """

    def __init__(self, size: int, *, pinned: bool) -> None:
        self._pinned = pinned
        self._tensor = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._event: Any = None

    def prepare(self, nbytes: int) -> None:
        """Wait until nothing copies from it any more, and have room for so many bytes."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        if nbytes > self._tensor.numel():
            # More than a chunk: kv_b_proj of a layer, or a very long row. It stays so large.
            self._tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._pinned)

    def array(self, nbytes: int) -> Bytes:
        """Its first bytes."""
        found: Bytes = self._tensor[:nbytes].numpy()
        return found

    def copied_from(self, device: torch.device) -> None:
        """A copy to `device` has just been queued."""
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
