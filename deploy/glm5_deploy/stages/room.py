"""Preflight of disks: room, inodes and mount options wherever something will be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.hosts.facts.system import Disk
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.model import incomplete
from glm5_deploy.stages.observed import Observed

GIB = 1 << 30
CACHE_BYTES = 2 * GIB
"""What torch.compile, Triton and CUDA keep of a large model on GPUs."""

STATE_BYTES = GIB // 10
VENV_INODES = 120_000
"""vLLM 0.26.0 for CUDA, with uv's cache that holds the same files by links, took 101,000."""

INODES_PER_GIB = 25_000
"""Of smaller environments."""


@dataclass(frozen=True)
class Writing:
    """A folder that something is written to.

    Args:
        what: for the reader.
        size: bytes that it takes.
        inodes: files that it takes.
        runs: programs or libraries are loaded from there.
    """

    path: PurePosixPath
    what: str
    size: int
    inodes: int = 0
    runs: bool = False


def disk(desired: Desired, observed: Observed) -> Check:
    """Every file system that is written to, and what it lacks."""
    writings = _by_disk(desired, observed)
    root = observed.system.disk_for(desired.paths.root)
    if not writings or root is None:
        return Check("disk", "skipped", f"no mount found for {desired.paths.root}")
    problems = [problem for disk, parts in writings.items() for problem in _lacks(disk, parts)]
    if problems:
        details, hints = zip(*problems, strict=True)
        return Check("disk", "failed", "; ".join(details), "; ".join(dict.fromkeys(hints)))
    return Check("disk", "passed", "; ".join(map(_described, writings, writings.values())))


def _by_disk(desired: Desired, observed: Observed) -> dict[Disk, list[Writing]]:
    found: dict[Disk, list[Writing]] = {}
    for writing in _writings(desired, observed):
        mounted = observed.system.disk_for(writing.path)
        if mounted is not None:
            found.setdefault(mounted, []).append(writing)
    return found


def _writings(desired: Desired, observed: Observed) -> Iterator[Writing]:
    paths, profile = desired.paths, desired.target.profile
    name = profile.unit_name.removesuffix(".service")
    venv = desired.venv
    # One that is layered on the host's own vLLM takes next to nothing.
    building = venv is not None and venv.base is None
    building = building and venv.identifier not in observed.deployment.venvs  # type: ignore[union-attr]
    gib = profile.needs.disk_gib if building else 0
    files = int(min(VENV_INODES, gib * INODES_PER_GIB))
    runs = desired.venv is not None
    yield Writing(paths.root / "venvs", "environment", int(gib * GIB), files, runs)
    missing = _missing_model_bytes(desired, observed)
    if missing:
        yield Writing(paths.model, "model", missing)
    on_gpus = profile.gpus.count > 0
    cache = PurePosixPath("/var/cache") / name
    yield Writing(cache, "compiled kernels", CACHE_BYTES if on_gpus else 0, runs=on_gpus)
    yield Writing(PurePosixPath("/var/lib") / name, "state", STATE_BYTES if on_gpus else 0)
    yield Writing(PurePosixPath("/tmp"), "temporary files", STATE_BYTES if on_gpus else 0)


def _missing_model_bytes(desired: Desired, observed: Observed) -> int:
    if desired.manifest is None or desired.target.profile.model.source is None:
        return 0
    lacking = incomplete(desired.manifest, observed.deployment.model_files or {})
    return sum(desired.manifest.sizes.get(name, 0) for name in lacking)


def _lacks(disk: Disk, parts: list[Writing]) -> Iterator[tuple[str, str]]:
    if "ro" in disk.flags:
        yield f"{disk.mount} is mounted read-only", f"mount {disk.mount} so that it can be written"
        return
    if sum(part.size for part in parts) > disk.available:
        yield _described(disk, parts), _more_room(disk, parts)
    files = sum(part.inodes for part in parts)
    if disk.inodes and files > disk.inodes_available:
        detail = f"{disk.inodes_available} inodes free on {disk.mount}, {files} needed"
        yield detail, _more_room(disk, parts)
    running = [part for part in parts if part.runs]
    if "noexec" in disk.flags and running:
        what = " and ".join(part.what for part in running)
        hint = f"mount another file system without noexec on {running[0].path}"
        yield f"{disk.mount} is mounted noexec, but the {what} must run from there", hint


def _more_room(disk: Disk, parts: list[Writing]) -> str:
    movable = any(part.what in {"environment", "model"} for part in parts)
    other = "set root to a larger disk" if movable else "mount a larger disk there"
    return f"free space on {disk.mount}, or {other}"


def _described(disk: Disk, parts: list[Writing]) -> str:
    need = sum(part.size for part in parts)
    text = f"{disk.available / GIB:.1f} GiB free on {disk.mount}, {need / GIB:.1f} GiB needed"
    large = [part for part in parts if part.size >= GIB]
    if len(large) > 1:
        text += f" ({', '.join(f'{part.what} {part.size / GIB:.1f}' for part in large)})"
    return text
