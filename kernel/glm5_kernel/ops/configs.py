"""Which tile, warps, stages and how many splits a call uses: a small table, measured beforehand.

docs/kernels.md says how the figures were measured. Nothing is tuned at serve time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Literal

Kv = Literal["16bit", "fp8"]


@dataclass(frozen=True)
class Config:
    """How one program works.

    Attributes:
        heads: query heads a program works on; fewer are padded.
        tile: KV slots it gathers at a time.
        warps: warps of 32 threads.
        stages: depth of the software pipeline; `stages - 1` tiles are in flight.
        shared: bytes of shared memory a program takes, with 512 + 64 dims.
        resident: programs that the registers of a multiprocessor hold at once.
        cost: how much longer a KV slot takes than with the best, on a device that is full.
    """

    heads: int
    tile: int
    warps: int
    stages: int
    shared: int
    resident: int = 2
    cost: float = field(default=1.0, compare=False)


@dataclass(frozen=True)
class Device:
    """What the shares of a call are cut for.

    Attributes:
        processors: multiprocessors.
        shared: bytes of shared memory of one of them.
    """

    processors: int
    shared: int


@dataclass(frozen=True)
class Row:
    """From `least_heads` heads and up to `load` query tiles per multiprocessor, use `config`.

    Attributes:
        fills: part of the device that it must fill, else the next row is used.
    """

    load: float
    config: Config
    least_heads: int = 1
    fills: float = 0.75


@dataclass(frozen=True)
class Table:
    """The measured choices for an architecture and a kind of KV cache.

    Attributes:
        rows: the first that fits is used; the last one, beyond all others, where it is quicker than
            `general`.
        general: also where the code needs more registers (shares that span tokens), and in
            deterministic mode.
        span_cost: how much longer a KV slot takes where shares span tokens.
    """

    rows: tuple[Row, ...]
    general: Config
    span_cost: float


@dataclass(frozen=True)
class Plan:
    """How the KV tiles of all tokens are shared out among programs.

    The tiles of one token after the other's form one sequence; each program takes the next `share`
    of them. A token's tiles may so be shared by `parts` programs, whose results are merged.

    Attributes:
        config: how a program works.
        units: KV tiles per token, perhaps rounded up.
        share: KV tiles per program.
    """

    config: Config
    units: int
    share: int

    @property
    def spans(self) -> bool:
        """Whether a program's share may belong to two tokens."""
        return self.units % self.share != 0

    @property
    def parts(self) -> int:
        """The most programs that share a token's tiles."""
        whole, rest = divmod(self.units, self.share)
        return whole + 2 if rest else whole

    def programs(self, tokens: int) -> int:
        """Programs per tile of query heads."""
        return math.ceil(tokens * self.units / self.share)

    @classmethod
    def split(cls, config: Config, topk: int, splits: int) -> Plan:
        """At most `splits` for every token, no program with two tokens."""
        units = math.ceil(topk / config.tile)
        share = math.ceil(units / splits)
        return cls(config, share * math.ceil(units / share), share)


# A query tile is one token's `heads` query heads. 0.035 of 132 to 188 multiprocessors: four to six
# query tiles, each shared by about as many programs as it has KV tiles.
SMALL = 0.035
ALWAYS = math.inf

NARROW = Config(heads=16, tile=32, warps=4, stages=3, shared=93_184)
WIDE = Config(heads=16, tile=64, warps=4, stages=2, shared=94_208)
DEEP = Config(heads=16, tile=64, warps=4, stages=3, shared=167_936)
MANY_HEADS = Config(heads=32, tile=64, warps=8, stages=3, shared=188_416)
# Half of the warps read every query half as often from shared memory, which is what limits a
# prefill whose KV lies in the second-level cache.
TWO_WARPS = Config(heads=16, tile=32, warps=2, stages=2, shared=56_320, resident=4)
NARROW_FP8 = replace(NARROW, shared=61_440)
TWO_WARPS_FP8 = Config(heads=16, tile=16, warps=2, stages=3, shared=39_936, resident=4)

FP8 = Table((Row(ALWAYS, NARROW_FP8),), general=NARROW_FP8, span_cost=1.2)
TABLES: dict[str, dict[Kv, Table]] = {
    # 99 KB of shared memory a program.
    "sm120": {
        "16bit": Table((Row(1.0, NARROW), Row(ALWAYS, WIDE)), general=NARROW, span_cost=1.35),
        "fp8": FP8,
    },
    # 227 KB.
    "sm90": {
        "16bit": Table(
            (
                Row(SMALL, NARROW),
                Row(1.0, MANY_HEADS, least_heads=32),
                Row(0.6, NARROW),
                # A token for each multiprocessor: none is shared, and nothing is merged.
                Row(1.0, DEEP, fills=0.95),
                Row(ALWAYS, TWO_WARPS),
            ),
            general=replace(NARROW, cost=1.4),
            span_cost=1.35,
        ),
        "fp8": Table(
            (Row(0.2, NARROW_FP8), Row(ALWAYS, TWO_WARPS_FP8)),
            general=replace(NARROW_FP8, cost=1.15),
            span_cost=1.2,
        ),
    },
}
# Not measured there: the table whose shared memory fits.
TABLES |= dict.fromkeys(("sm80", "sm86", "sm89"), TABLES["sm120"])
TABLES |= {"sm100": TABLES["sm90"]}

SHARED = {
    "sm80": 167_936,
    "sm86": 102_400,
    "sm89": 102_400,
    "sm90": 233_472,
    "sm100": 233_472,
    "sm120": 102_400,
}
"""Bytes of shared memory of a multiprocessor."""

RESERVED = 1024
"""Bytes of it that each resident program takes besides its own."""

SHARED_LIMIT = {
    "sm80": 166_912,
    "sm86": 101_376,
    "sm89": 101_376,
    "sm90": 232_448,
    "sm100": 232_448,
    "sm120": 101_376,
}
"""Bytes of shared memory that one program may use."""


def architecture(capability: tuple[int, int]) -> str:
    """Name of the table for a CUDA compute capability.

    Raises:
        ValueError: older than 8.0.
    """
    number = capability[0] * 10 + capability[1]
    if number < 80:
        raise ValueError(f"device: got compute capability {number / 10}; allowed: 8.0 and newer")
    names = {80: "sm80", 86: "sm86", 87: "sm86", 89: "sm89"}
    if number in names:
        return names[number]
    return {9: "sm90", 10: "sm100", 11: "sm100"}.get(capability[0], "sm120")


DETERMINISTIC_SPLITS = 8
SHORT = 4
"""KV tiles per program up to which one program per multiprocessor is the better choice."""


@functools.lru_cache(maxsize=4096)
def plan(
    arch: str,
    kv: Kv,
    tokens: int,
    heads: int,
    topk: int,
    device: Device,
    *,
    deterministic: bool = False,
) -> Plan:
    """Choose configuration and shares from shapes alone, so that a captured graph stays valid.

    Args:
        arch: name of the table.
        kv: kind of KV cache.
        tokens: query tokens, at least 1.
        heads: query heads.
        topk: width of the indices.
        device: what it runs on.
        deterministic: choose without regard to `tokens`.
    """
    table = TABLES[arch][kv]
    if deterministic:
        return Plan.split(table.general, topk, DETERMINISTIC_SPLITS)
    load = Load(tokens, heads, topk, device)
    for row in table.rows[:-1]:
        chosen = load.whole(row.config)
        if load.admitted(row) and load.filled(chosen) >= row.fills:
            return chosen
    whole = [load.whole(config) for config in (table.rows[-1].config, table.general)]
    general = min(whole, key=load.time)
    spanning = load.spanning(table.general)
    worth = load.time(spanning) * table.span_cost < load.time(general)
    return spanning if spanning.spans and general.share > SHORT and worth else general


@dataclass(frozen=True)
class Load:
    """The work of a call, and the device it runs on."""

    tokens: int
    heads: int
    topk: int
    device: Device

    def whole(self, config: Config) -> Plan:
        """The plan that fills the device best without shares that span tokens."""
        units = math.ceil(self.topk / config.tile)
        alone = replace(config, resident=1)
        for fewer in (alone, config):
            splits = max(1, min(self.room(fewer) // self.tokens, units))
            chosen = Plan.split(config, self.topk, splits)
            if chosen.share <= SHORT:
                break
        return chosen

    def spanning(self, config: Config) -> Plan:
        """The plan whose shares are all equal."""
        units = math.ceil(self.topk / config.tile)
        return Plan(config, units, math.ceil(self.tokens * units / self.room(config)))

    def room(self, config: Config) -> int:
        """Programs per tile of query heads that the device holds at once."""
        return max(1, self.device.processors * self.resident(config) // self.head_tiles(config))

    def head_tiles(self, config: Config) -> int:
        """Tiles of query heads of a token."""
        return math.ceil(self.heads / config.heads)

    def resident(self, config: Config) -> int:
        """Programs that a multiprocessor holds at once."""
        return min(config.resident, self.device.shared // (config.shared + RESERVED)) or 1

    def admitted(self, row: Row) -> bool:
        tiles = self.tokens * self.head_tiles(row.config)
        return self.heads >= row.least_heads and tiles <= row.load * self.device.processors

    def rounds(self, chosen: Plan) -> int:
        """How often the device is filled."""
        return math.ceil(chosen.programs(self.tokens) / self.room(chosen.config))

    def time(self, chosen: Plan) -> float:
        """KV slots that the multiprocessor with the most programs works on, weighted."""
        config = chosen.config
        programs = chosen.programs(self.tokens) * self.head_tiles(config)
        most = math.ceil(programs / self.device.processors)
        return most * chosen.share * config.tile * config.cost

    def filled(self, chosen: Plan) -> float:
        """Part of the device that works, on average; 1 for short shares."""
        if chosen.share <= SHORT:
            return 1.0
        room = self.rounds(chosen) * self.room(chosen.config)
        return chosen.programs(self.tokens) / room
