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
class ShortTopkConfig:
    """How a program of the top-k kernel for short rows works. Both are powers of two.

    Attributes:
        room: columns that it has registers for; 4096 at most, or 8192, or 16,384.
        warps: warps of 32 threads, 4 to 32.
    """

    room: int
    warps: int


LEAST_SAMPLED = 65_536
"""Columns up to which the smaller sample does."""


@dataclass(frozen=True)
class TopkConfig:
    """How a program of the top-k kernel works. All but `programs` are powers of two.

    Attributes:
        tile: values looked at at a time.
        warps: warps of 32 threads, 4 to 16.
        programs: programs per multiprocessor that a call is shared out to.
        room: candidates that it holds in registers for the final selection.
        held: values of a row that needs no candidates, at least as many as `room`.
        list: candidates that there is room for in memory; as many as `room` more for a better list.
    """

    tile: int
    warps: int
    programs: int
    room: int = 4096
    held: int = 4096
    list: int = 8192

    counter_bytes = 16_384
    """Two int32 for each list."""

    @property
    def registers(self) -> int:
        """Of a thread, at most: with more, fewer programs would fit on a multiprocessor."""
        return min(255, 65_536 // (32 * self.warps * self.programs))

    @staticmethod
    def sample(columns: int) -> int:
        """Values of a long row that its threshold is guessed from.

        So many that with k = 2048, in rows of up to 131,072, there are more candidates than `room`
        in less than one row of a hundred, and fewer than k in one of five thousand.
        """
        return 2048 if columns <= LEAST_SAMPLED else 4096


@dataclass(frozen=True)
class TopkTable:
    """Configurations by the shape of the matrix.

    Attributes:
        short: for rows that fit in registers, the narrowest first; the others are for longer ones.
        few: where there are no more rows than multiprocessors; the widest tiles first.
        many: where there are more.
    """

    short: tuple[ShortTopkConfig, ...]
    few: tuple[TopkConfig, ...]
    many: TopkConfig

    @property
    def long(self) -> tuple[TopkConfig, ...]:
        return (*self.few, self.many)


@dataclass(frozen=True)
class TopkPlan:
    """How rows are shared out.

    Attributes:
        config: how a program works.
        parts: programs of a row if `split`, else of the whole call.
        split: whether several programs share a row.
    """

    config: TopkConfig | ShortTopkConfig
    parts: int
    split: bool = False

    def programs(self, rows: int) -> int:
        return self.parts * rows if self.split else self.parts


SMALL = PagedConfig(tile=64, warps=4, stages=3, programs=16)

PAGED: dict[str, tuple[PagedConfig, ...]] = {
    # 99 KB of shared memory: two programs for one token of a request, one for four.
    "sm120": (PagedConfig(tile=128, warps=4, stages=3, programs=4), SMALL),
    "sm90": (PagedConfig(tile=128, warps=4, stages=3, programs=4), SMALL),
}
PREFILL: dict[str, PrefillConfig] = {
    "sm120": PrefillConfig(tile=128, rows=64, columns=64, warps=4, stages=3),
    "sm90": PrefillConfig(tile=128, rows=64, columns=128, warps=4, stages=3),
}
SHORT_TOPK = (
    ShortTopkConfig(room=4096, warps=16),
    ShortTopkConfig(room=16_384, warps=32),
)
FEW_TOPK = (
    TopkConfig(tile=8192, warps=16, programs=1, held=8192),
    TopkConfig(tile=4096, warps=16, programs=1, held=8192),
)
TOPK: dict[str, TopkTable] = {
    # Of tiles of 4096 more registers spill there.
    "sm120": TopkTable(SHORT_TOPK, FEW_TOPK, TopkConfig(tile=2048, warps=16, programs=2)),
    "sm90": TopkTable(SHORT_TOPK, FEW_TOPK, TopkConfig(tile=4096, warps=16, programs=2)),
}
# Not measured there: the table of what is most alike.
PAGED |= {"sm89": PAGED["sm120"], "sm100": PAGED["sm90"]}
PREFILL |= {"sm89": PREFILL["sm120"], "sm100": PREFILL["sm90"]}
TOPK |= {"sm89": TOPK["sm120"], "sm100": TOPK["sm90"]}


def paged_config(arch: str, requests: int, context: int, processors: int) -> PagedConfig:
    """The first configuration whose tiles are enough for every multiprocessor, or the smallest."""
    for config in PAGED[arch]:
        if requests * math.ceil(context / config.tile) >= processors:
            return config
    return PAGED[arch][-1]


def paged_parts(config: PagedConfig, requests: int, context: int, processors: int) -> int:
    """Programs that share a request's cached tokens."""
    room = max(1, config.programs * processors // requests)
    return max(1, min(math.ceil(context / config.tile), room))


def topk_plan(arch: str, rows: int, columns: int, processors: int) -> TopkPlan:
    """Choose from shapes alone, so that a captured graph stays valid."""
    table = TOPK[arch]
    for short in table.short:
        if columns <= short.room:
            return TopkPlan(short, rows)
    if rows > processors:
        return TopkPlan(table.many, min(rows, table.many.programs * processors))
    room = processors // rows
    config = next((c for c in table.few if columns >= room * c.tile), table.few[-1])
    return TopkPlan(config, min(room, math.ceil(columns / config.tile)), split=True)


def topk_forms(arch: str, rows: int, longest: int, processors: int) -> list[tuple[int, TopkPlan]]:
    """A width and a plan of each form of calls of up to `rows` rows and `longest` columns."""
    table = TOPK[arch]
    found: list[tuple[int, TopkPlan]] = []
    for short, less in zip(table.short, (0, *(each.room for each in table.short)), strict=False):
        if less < longest:
            found.append((min(short.room, longest), TopkPlan(short, 1)))
    for width, less in ((LEAST_SAMPLED, table.short[-1].room), (longest, LEAST_SAMPLED)):
        if less < longest:
            plans = [TopkPlan(config, 1, split=True) for config in table.few]
            plans += [TopkPlan(table.many, 1)] if rows > processors else []
            found += [(min(width, longest), plan) for plan in plans]
    return found


def topk_lists(arch: str, rows: int, processors: int) -> int:
    """The most lists of candidates of any call with up to `rows` rows."""
    most = max(config.programs for config in TOPK[arch].long)
    return max(1, min(rows, most * processors))
