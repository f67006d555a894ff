"""How far loading is, in lines that glm5-deploy shows.

`glm5_kernel: loading shard 3/9 (12.3 of 45.6 GB)`: bytes that this rank reads, decimal gigabytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("vllm.glm5_kernel")

INTERVAL = 5.0
"""Seconds between two lines about the same shard."""


class Progress:
    """Says which shard is being read: when one begins, every few seconds, and at the end.

    Args:
        shards: files.
        total: bytes to read.
        say: takes each line; None to be silent.
        clock: seconds.
    """

    def __init__(
        self,
        shards: int,
        total: int,
        say: Callable[[str], None] | None = logger.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards = shards
        self._total = total
        self._say = say
        self._clock = clock
        self._shard = -1
        self._done = 0
        self._began = self._said = clock()

    def add(self, shard: int, nbytes: int) -> None:
        """So many bytes of a shard (from 0) have been read; shards come in order."""
        now = self._clock()
        if shard != self._shard or now - self._said >= INTERVAL:
            self._shard, self._said = shard, now
            self._line(
                f"loading shard {shard + 1}/{self._shards} "
                f"({self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB)"
            )
        self._done += nbytes

    def finish(self) -> None:
        """All is read: how much, how long and how fast."""
        seconds = max(self._clock() - self._began, 1e-6)
        self._line(
            f"read {self._done / 1e9:.1f} GB in {seconds:.1f} s ({self._done / 1e9 / seconds:.2f} "
            "GB/s)"
        )

    def _line(self, text: str) -> None:
        if self._say is not None:
            self._say(f"glm5_kernel: {text}")
