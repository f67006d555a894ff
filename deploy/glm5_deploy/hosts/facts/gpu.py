"""Facts about GPUs, from ``nvidia-smi``."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from glm5_deploy.config.numbers import natural
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import TIMED_OUT, Fact, FactOutput

QUERY_GPUS = r"""
command -v nvidia-smi >/dev/null || exit 45
try() { nvidia-smi --query-gpu="$1" --format=csv,nounits; }
out=$(try "$1,$2") || out=$(try "$1") || { printf '%s\n' "$out"; exit 1; }
printf '%s\n' "$out"
echo
nvidia-smi --version 2>/dev/null | grep -i 'cuda version' || nvidia-smi | head -n 5
"""
"""$1 fields that every driver knows, $2 fields that an old one may refuse, all at once. A header
names the fields that came. ``--version`` is quick; drivers that lack it print the CUDA version in
the ordinary table."""

MISSING = 45

PLAIN_FIELDS = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "memory.used",
    "driver_version",
    "pci.bus_id",
)
NEWER_FIELDS = (
    "compute_cap",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "persistence_mode",
    "pcie.link.width.current",
    "pcie.link.width.max",
)


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        memory_total: bytes; 0 where the driver does not say (some integrated GPUs).
        memory_used: bytes.
        compute_capability: for instance (12, 0); None where an old driver does not say.
        mig: Multi-Instance GPU is on: the GPU itself cannot be used whole.
        ecc_errors: uncorrected since the last reset; None without ECC.
        persistence: the driver keeps the GPU ready while nobody uses it; None where not said.
        lanes: PCIe lanes in use and those that the GPU has; None where not said.
    """

    index: int
    name: str
    uuid: str
    memory_total: int
    memory_used: int
    compute_capability: tuple[int, int] | None
    mig: bool
    ecc_errors: int | None
    bus_id: str
    persistence: bool | None = None
    lanes: tuple[int, int] | None = None


@dataclass(frozen=True)
class GpuFacts:
    """All GPUs and their driver.

    Args:
        gpus: by index; empty where there are none.
        driver: version, or None.
        cuda: the newest CUDA version that the driver runs, for instance ``13.0``.
        problem: what ``nvidia-smi`` says instead, where it is installed and fails.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    problem: str | None = None


def parse_gpus(output: FactOutput) -> GpuFacts:
    """Read what `QUERY_GPUS` prints."""
    if output.returncode == MISSING:
        return GpuFacts()
    if output.returncode == TIMED_OUT:
        return GpuFacts(problem="nvidia-smi does not answer: the driver hangs")
    table, _, rest = output.stdout.partition("\n\n")
    cuda = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", rest, re.IGNORECASE)
    rows = list(csv.reader(table.strip().splitlines(), skipinitialspace=True))
    if not _is_table(rows):
        problem = _one_line(table) or _one_line(output.stderr)
        return GpuFacts(problem=problem or f"nvidia-smi ended with status {output.returncode}")
    header = [title.split(" [")[0].strip() for title in rows[0]]
    said = [row for row in rows[1:] if row]
    whole = [row for row in said if len(row) == len(header) and natural(row[0].strip()) is not None]
    records = [dict(zip(header, row, strict=True)) for row in whole]
    # a GPU that fell off the bus is reported among the rows of the others
    rest_of_it = [", ".join(row) for row in said if row not in whole]
    driver = next((record["driver_version"] for record in records), None)
    gpus = sorted((_gpu(record) for record in records), key=lambda gpu: gpu.index)
    return GpuFacts(
        tuple(gpus), driver, cuda[1] if cuda else None, _one_line(" ".join(rest_of_it)) or None
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_table(rows: list[list[str]]) -> bool:
    return bool(rows) and rows[0][0].strip() == "index"


def _gpu(record: dict[str, str]) -> Gpu:
    capability = re.fullmatch(r"(\d+)\.(\d+)", record.get("compute_cap", ""))
    return Gpu(
        index=int(record["index"]),
        name=record["name"],
        uuid=record["uuid"],
        memory_total=_mebibytes(record["memory.total"]),
        memory_used=_mebibytes(record["memory.used"]),
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        mig=record.get("mig.mode.current", "").strip() == "Enabled",
        ecc_errors=natural(record.get("ecc.errors.uncorrected.volatile.total", "")),
        bus_id=record["pci.bus_id"],
        persistence=_switch(record.get("persistence_mode", "")),
        lanes=_lanes(record),
    )


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text.strip())


def _lanes(record: dict[str, str]) -> tuple[int, int] | None:
    used, there = (
        natural(record.get(f"pcie.link.width.{which}", "")) for which in ("current", "max")
    )
    return None if used is None or there is None else (used, there)


def _mebibytes(text: str) -> int:
    return (natural(text) or 0) * 2**20


GPU_FACT = Fact(
    "gpus", script(QUERY_GPUS, ",".join(PLAIN_FIELDS), ",".join(NEWER_FIELDS)), parse_gpus
)
