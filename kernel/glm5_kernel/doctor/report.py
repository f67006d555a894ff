"""What the doctor found, as data: versions, GPUs, parts of the plugin, and a row for each check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]
ABSENT = "absent"
"""The version of what is not installed."""


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    Attributes:
        detail: what was found, in one line.
        hint: what to do about it, where something is wrong.
    """

    name: str
    status: Status
    detail: str = ""
    hint: str | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as the server would see it.

    Attributes:
        index: its number among those that are visible (CUDA_VISIBLE_DEVICES).
        capability: compute capability, such as "12.0".
        memory: bytes in all.
        uuid: as nvidia-smi writes it, without its prefix; empty where torch does not tell.
        free: bytes that nobody used; None where nvidia-smi does not tell.
    """

    index: int
    name: str
    capability: str
    memory: int
    uuid: str = ""
    free: int | None = None

    @property
    def level(self) -> tuple[int, int]:
        major, minor = self.capability.split(".")
        return int(major), int(minor)


@dataclass(frozen=True)
class PartState:
    """What became of one part of the plugin (`registration.Part`)."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Report:
    """All of it."""

    versions: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    parts: tuple[PartState, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what was skipped is no failure."""
        return all(check.status != "failed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "versions": dict(self.versions),
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "parts": [asdict(part) for part in self.parts],
            "checks": [asdict(check) for check in self.checks],
        }


def passed(name: str, detail: str = "") -> Check:
    return Check(name, "passed", detail)


def failed(name: str, detail: str, hint: str) -> Check:
    return Check(name, "failed", detail, hint)


def skipped(name: str, detail: str) -> Check:
    return Check(name, "skipped", detail)
