"""Which tile, warps, stages and how many splits a call uses: a small table, measured beforehand.

docs/kernels.md says how the figures were measured. Nothing is tuned at serve time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
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
        resident: programs that a multiprocessor holds at once, which the splits aim to fill.
    """

    heads: int
    tile: int
    warps: int
    stages: int
    resident: int


@dataclass(frozen=True)
class Row:
    """A row of the table: up to `load` query tiles per multiprocessor, use `config`."""

    load: float
    config: Config


@dataclass(frozen=True)
class Plan:
    """What a call launches: `config`, and in how many splits each row's KV slots are worked on."""

    config: Config
    splits: int


# A query tile is one token's `heads` query heads. 0.02 of 132 to 188 multiprocessors: one to three
# query tiles, each in as many splits as it has tiles.
SMALL = 0.02
ALWAYS = math.inf

TABLE: dict[str, dict[Kv, tuple[Row, ...]]] = {
    # 99 KB of shared memory a program.
    "sm120": {
        "16bit": (
            Row(2.0, Config(heads=16, tile=32, warps=4, stages=3, resident=2)),
            Row(ALWAYS, Config(heads=16, tile=64, warps=4, stages=2, resident=2)),
        ),
        "fp8": (Row(ALWAYS, Config(heads=16, tile=32, warps=4, stages=3, resident=2)),),
    },
    # 227 KB.
    "sm90": {
        "16bit": (
            Row(SMALL, Config(heads=16, tile=32, warps=4, stages=3, resident=2)),
            Row(1.0, Config(heads=16, tile=64, warps=4, stages=3, resident=1)),
            Row(ALWAYS, Config(heads=16, tile=64, warps=4, stages=2, resident=2)),
        ),
        "fp8": (Row(ALWAYS, Config(heads=16, tile=32, warps=4, stages=3, resident=2)),),
    },
}
# Not measured: the measured table whose shared memory fits.
TABLE["sm89"] = TABLE["sm86"] = TABLE["sm120"]
TABLE["sm80"] = TABLE["sm120"]  # 163 KB
TABLE["sm100"] = TABLE["sm90"]  # 227 KB

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


@functools.lru_cache(maxsize=4096)
def plan(
    arch: str,
    kv: Kv,
    tokens: int,
    heads: int,
    topk: int,
    processors: int,
    deterministic: bool = False,
) -> Plan:
    """Choose configuration and splits from shapes alone, so that a captured graph stays valid.

    Args:
        arch: name of the table.
        kv: kind of KV cache.
        tokens: query tokens.
        heads: query heads.
        topk: width of the indices.
        processors: multiprocessors of the device.
        deterministic: choose without regard to `tokens`.
    """
    rows = TABLE[arch][kv]
    if deterministic:
        config = rows[-1].config
        return Plan(config, min(DETERMINISTIC_SPLITS, max(1, math.ceil(topk / config.tile))))
    for row in rows:
        tiles = tokens * math.ceil(heads / row.config.heads)
        if tiles <= row.load * processors:
            break
    return Plan(row.config, splits(tiles, math.ceil(topk / row.config.tile), row, processors))


DETERMINISTIC_SPLITS = 8


def splits(query_tiles: int, kv_tiles: int, row: Row, processors: int) -> int:
    """Number of splits that fills the device once, no split without a KV tile."""
    wanted = processors * row.config.resident // max(query_tiles, 1)
    return max(1, min(wanted, kv_tiles))
