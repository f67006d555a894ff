"""How the indexer's kernels share out their work: small tables, measured beforehand.

docs/kernels.md says how the figures were measured. Nothing is tuned at serve time. SM90's were
measured on an H200; those of SM89, SM100 and SM120 follow by reasoning from their shared memory
and registers, and were compiled but not run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PagedConfig:
    """How a program of the paged logits kernel works.

    Attributes:
        tile: cached tokens at a time, a multiple of 64.
        warps: warps of 32 threads.
        stages: depth of the software pipeline.
        programs: programs per multiprocessor that a call is shared out to, at most.
        columns: query heads, of one or more tokens of a request, that are multiplied at a time.
    """

    tile: int
    warps: int
    stages: int
    programs: int
    columns: int = 128


@dataclass(frozen=True)
class PrefillConfig:
    """How a program of the prefill logits kernel works.

    Attributes:
        tile: keys of a program.
        rows: query tokens of a program.
        columns: query heads, of one or more tokens, that are multiplied at a time.
        warps: warps of 32 threads.
        stages: depth of the software pipeline.
    """

    tile: int
    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True)
class TopkConfig:
    """How a program of the top-k kernel works.

    Attributes:
        tile: values looked at at a time.
        sample: values of a long row that its threshold is guessed from.
        narrow: values held in registers if that is enough.
        wide: values held in registers otherwise; longer rows have a list of that many candidates.
        warps: warps of 32 threads.
        programs: programs per multiprocessor that a call is shared out to.
    """

    tile: int = 2048
    sample: int = 2048
    narrow: int = 4096
    wide: int = 8192
    warps: int = 8
    programs: int = 1

    counter_bytes = 16_384
    """Two int32 for each row that several programs share."""


@dataclass(frozen=True)
class TopkPlan:
    """How rows are shared out.

    Attributes:
        config: how a program works.
        parts: programs of a row if `split`, else of the whole call.
        split: whether several programs share a row.
    """

    config: TopkConfig
    parts: int
    split: bool

    def programs(self, rows: int) -> int:
        return self.parts * rows if self.split else self.parts


PAGED: dict[str, PagedConfig] = {
    "sm120": PagedConfig(tile=64, warps=4, stages=3, programs=8),
    "sm90": PagedConfig(tile=128, warps=4, stages=3, programs=4),
}
PREFILL: dict[str, PrefillConfig] = {
    "sm120": PrefillConfig(tile=128, rows=64, columns=64, warps=4, stages=3),
    "sm90": PrefillConfig(tile=128, rows=64, columns=128, warps=4, stages=3),
}
TOPK: dict[str, TopkConfig] = {"sm120": TopkConfig(), "sm90": TopkConfig()}
# Not measured there: the table of what is most alike.
for _table in (PAGED, PREFILL, TOPK):
    _table |= {"sm89": _table["sm120"], "sm100": _table["sm90"]}  # type: ignore[attr-defined, index]


def paged_parts(config: PagedConfig, requests: int, context: int, processors: int) -> int:
    """Programs that share a request's cached tokens."""
    room = max(1, config.programs * processors // requests)
    return max(1, min(math.ceil(context / config.tile), room))


def topk_plan(arch: str, rows: int, columns: int, processors: int) -> TopkPlan:
    """Choose from shapes alone, so that a captured graph stays valid."""
    config = TOPK[arch]
    room = config.programs * processors
    parts = min(room // rows, math.ceil(columns / config.tile))
    if columns > config.wide and parts > 1 and 8 * rows <= config.counter_bytes:
        return TopkPlan(config, parts, split=True)
    return TopkPlan(config, min(rows, room), split=False)
