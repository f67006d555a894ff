"""A wheelhouse: a folder with the wheels of a lock, filled on the operator's machine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glm5_deploy.errors import Glm5Error
from glm5_deploy.locks.text import Pin, normalised, pins

_COMING = re.compile(r"^(?:Collecting|Processing) (?P<what>\S+?)(?:==|-)(?P<version>\d\S*)")
_NEWEST_TAG = re.compile(r"^x86_64-manylinux_(\d+)_(\d+)$")
_OLDEST = 5

Told = Callable[[str, float], None]
"""Called with the package that comes now and the fraction of packages before it."""


class WheelhouseError(Glm5Error):
    """The wheels cannot be had."""


@dataclass(frozen=True)
class Wheelhouse:
    """What a folder holds of a lock.

    Args:
        present: packages of the lock that have a wheel there.
        missing: those that have none, as ``name==version``.
        bytes: of all wheels.
    """

    present: int
    missing: tuple[str, ...]
    bytes: int


def look(lock: str, folder: Path) -> Wheelhouse:
    """Compare a folder with a lock by the names of files; the host checks the hashes."""
    wanted = pins(lock)
    files = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    held = {_name_and_version(path.name) for path in files}
    missing = [f"{pin.name}=={pin.version}" for pin in wanted.values() if _key(pin) not in held]
    total = sum(path.stat().st_size for path in files)
    return Wheelhouse(len(wanted) - len(missing), tuple(missing), total)


def surplus(lock: str, folder: Path) -> list[Path]:
    """Wheels that the lock does not name: those of an earlier one."""
    wanted = {_key(pin) for pin in pins(lock).values()}
    return [path for path in sorted(folder.glob("*.whl")) if _name_and_version(path.name)
            not in wanted]  # fmt: skip


def _key(pin: Pin) -> tuple[str, str]:
    return pin.name, _plain(pin.version)


def _name_and_version(wheel: str) -> tuple[str, str]:
    name, version, *_ = [*wheel.split("-"), "", ""]
    return normalised(name), _plain(version)


def _plain(version: str) -> str:
    # A wheel's name writes a local version's hyphens and dots otherwise.
    return version.replace("_", ".").lower()


def platform_tags(platform: str) -> list[str]:
    """pip's platforms for uv's name of one, newest first.

    Raises:
        WheelhouseError: a name that is not ``x86_64-manylinux_2_NN``.
    """
    match = _NEWEST_TAG.match(platform)
    if match is None:
        raise WheelhouseError(
            f"no wheels can be chosen for the platform {platform!r}",
            "a lock's platform is such as x86_64-manylinux_2_31",
        )
    major, minor = int(match[1]), int(match[2])
    newest = [f"manylinux_{major}_{number}_x86_64" for number in range(minor, _OLDEST - 1, -1)]
    return [*newest, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def fill(lock: Path, folder: Path, *, python: str, platform: str, told: Told) -> Wheelhouse:
    """Download what the folder lacks with pip; hashes are checked, and what is there stays.

    Where packages come from is pip's own settings.

    Raises:
        WheelhouseError: a download failed, with pip's own words; the next call resumes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = lock.read_text()
    arguments = [
        "download",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        *(f"--platform={tag}" for tag in platform_tags(platform)),
        f"--find-links={folder}",
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--no-cache-dir",
        f"--requirement={lock}",
        f"--dest={folder}",
    ]
    _pip(arguments, len(pins(text)), told)
    found = look(text, folder)
    if found.missing:
        raise WheelhouseError(f"pip left out {', '.join(found.missing[:5])}")
    return found


def _pip(arguments: Iterable[str], total: int, told: Told) -> None:
    said: list[str] = []
    with subprocess.Popen(
        [*_program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # a pipe
        count = 0
        for line in process.stdout:
            match = _COMING.match(line)
            if match:
                name = match["what"].rpartition("/")[2]
                told(f"{name} {match['version']}", count / max(total, 1))
                count += 1
            said.append(line.rstrip())
    if process.returncode:
        errors = [line for line in said if "ERROR" in line] or said[-10:]
        raise WheelhouseError(
            f"pip could not download the wheels (status {process.returncode})\n"
            + "\n".join(errors[:10]),
            "run it again: what has arrived stays",
        )


def _program() -> list[str]:
    """pip of this environment, else one that uv fetches: uv itself downloads no wheels."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    from uv import find_uv_bin

    return [find_uv_bin(), "tool", "run", "pip"]
