"""A folder with every wheel that vLLM on the CPU needs, and a hashed lock that names just these.

Made on the operator's machine and kept, so that throwaway hosts need no package index and a second
demo downloads nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glm5_deploy.config.locks import lock_path
from glm5_deploy.demo.lock import LOCK, TORCH_VERSION, compose
from glm5_deploy.demo.shims import write_shims
from glm5_deploy.errors import Glm5Error
from glm5_deploy.local_command import locked, run
from glm5_deploy.locks.text import normalised, pins, read_lock
from glm5_deploy.run.local import cache_folder

TORCH_INDEX = "GLM5_TORCH_INDEX"
CUDA_BUILD = (
    f"no CPU build of torch {TORCH_VERSION} is at hand for this Python: taking the package index's,"
    " which is built for CUDA and works on the CPU too (4.7 GB installed)."
    f" ${TORCH_INDEX} names an index or a folder with a CPU build (0.2 GB)."
)
_COMPLETE = "complete.json"

Say = Callable[[str], None]


class WheelhouseError(Glm5Error):
    """The wheels for this machine cannot be had."""


@dataclass(frozen=True)
class Wheelhouse:
    """What the ``venv`` stage needs.

    Args:
        folder: the wheels, for ``--no-index --find-links``.
        lock: hashed requirements that name all of them.
        torch: the version that was taken, such as ``2.13.0+cpu``.
    """

    folder: Path
    lock: Path
    torch: str


def prepare(python: str, say: Say, cache: Path | None = None) -> Wheelhouse:
    """Download what is missing (0.6 GB with a CPU build of torch) and return the wheelhouse.

    Args:
        python: version of the host's Python, such as ``3.11``.
        say: told what is done, one line at a time.

    Raises:
        WheelhouseError: this machine's architecture has no lock.
        LocalCommandError: a download failed, with pip's own words; the next call resumes.
    """
    if platform.machine() != "x86_64":
        raise WheelhouseError(
            f"the lock {LOCK} is for x86-64; this machine is {platform.machine()}",
            "point an inventory at a host that you have",
        )
    lock = lock_path(LOCK)
    base = (cache or cache_folder()) / f"wheelhouse-{LOCK}-py{python}-{_digest(lock)}"
    done = base / _COMPLETE
    base.mkdir(parents=True, exist_ok=True)
    with locked(base / "lock"):
        if not done.is_file():
            _fill(base, lock, python, say)
    return Wheelhouse(base / "wheels", base / "lock.txt", json.loads(done.read_text())["torch"])


def _fill(base: Path, lock: Path, python: str, say: Say) -> None:
    wheels = base / "wheels"
    write_shims(wheels)
    say(f"downloading the wheels of {LOCK} for Python {python} (0.4 GB, kept in {base})")
    target = _target(python)
    exactly = ("--no-deps", "--require-hashes", "-r", lock)
    _pip("download", *target, *exactly, "-d", wheels, near=wheels)
    torch, extra = _find_torch(target)
    if "+" not in torch:
        say(CUDA_BUILD)
    say(f"downloading torch {torch}")
    _pip("download", *target, "--no-deps", "-d", wheels, f"torch=={torch}", index=_torch_index())
    if extra:
        _download_with_requirements(wheels, target, lock, extra)
    # Not what this call has downloaded: a call before it may have been interrupted.
    text = compose(read_lock(lock), _unlocked(wheels, lock))
    (base / "lock.txt").write_text(text, encoding="utf-8")
    (base / _COMPLETE).write_text(json.dumps({"torch": torch}), encoding="utf-8")


def _unlocked(wheels: Path, lock: Path) -> list[Path]:
    """The wheels that the lock does not name: torch, and what it needs."""
    known = pins(read_lock(lock))
    return [each for each in wheels.iterdir() if normalised(each.name.split("-")[0]) not in known]


def _find_torch(target: Sequence[str]) -> tuple[str, list[str]]:
    """The version of torch that pip would take, and what it needs beyond the lock: CUDA."""
    report = json.loads(
        _pip(
            "install",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--report=-",
            "--target=nowhere",
            *target,
            f"torch=={TORCH_VERSION}",
            index=_torch_index(),
        )
    )
    metadata = report["install"][0]["metadata"]
    version = str(metadata["version"])
    requirements: list[str] = metadata.get("requires_dist", [])
    cuda = [text for text in requirements if 'platform_system == "Linux"' in text]
    # torch imports without triton, and the lock has a shim in its place
    return version, [text for text in cuda if not text.startswith("triton")]


def _download_with_requirements(
    wheels: Path, target: Sequence[str], lock: Path, requirements: Sequence[str]
) -> None:
    """CUDA's libraries with all that they need, less what the lock has already."""
    extra = wheels.parent / "cuda"
    shutil.rmtree(extra, ignore_errors=True)
    plain = [text.partition(";")[0].strip() for text in requirements]
    _pip("download", *target, "-d", extra, *plain)
    for wheel in _unlocked(extra, lock):
        wheel.rename(wheels / wheel.name)
    shutil.rmtree(extra)


def _torch_index() -> tuple[str, ...]:
    """pip's options for ``$GLM5_TORCH_INDEX``: a folder of wheels, or an index."""
    place = os.environ.get(TORCH_INDEX)
    if not place:
        return ()
    if Path(place).is_dir():
        return ("--no-index", f"--find-links={place}")
    return (f"--index-url={place}",)


def _target(python: str) -> list[str]:
    """pip's options that pick wheels for the host's Python and the C library that both have."""
    major, minor = (int(part) for part in platform.libc_ver()[1].split(".")[:2])
    tags = [f"manylinux_{major}_{number}_x86_64" for number in range(minor, 4, -1)]
    platforms = [*tags, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    return [
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        *(f"--platform={tag}" for tag in platforms),
    ]


def _pip(
    verb: str, *arguments: str | Path, near: Path | None = None, index: tuple[str, ...] = ()
) -> str:
    """pip of this environment, else one that uv fetches: uv itself does not read pip's settings."""
    if find_spec("pip"):
        program: list[str | Path] = [sys.executable, "-m", "pip"]
    else:
        from uv import find_uv_bin

        program = [find_uv_bin(), "tool", "run", "pip"]
    links = [f"--find-links={near}"] if near else []
    return run([*program, verb, "--quiet", *links, *index, *arguments])


def _digest(lock: Path) -> str:
    """Changes with the lock and with where torch comes from."""
    text = lock.read_bytes() + os.environ.get(TORCH_INDEX, "").encode()
    return hashlib.sha256(text).hexdigest()[:10]
