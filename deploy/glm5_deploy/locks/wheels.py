"""A wheelhouse: a folder with the wheels of a lock, filled on the operator's machine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from glm5_deploy.errors import Glm5Error, UsageError
from glm5_deploy.locks.text import Pin, logical_lines, normalised, pins, read_lock

_COMING = re.compile(r"^(?:Collecting|Processing) (?P<what>\S+?)(?:==|-)(?P<version>\d\S*)")
_NEWEST_TAG = re.compile(r"^x86_64-manylinux_(\d+)_(\d+)$")
_OLDEST = 5
_AT_ONCE = 8
_COMING_FOLDER = ".coming-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = "free some space there, or name a folder on a larger disk"

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


def damaged(lock: str, folder: Path) -> list[Path]:
    """Wheels of the lock's packages whose SHA-256 the lock does not name; reads all of them."""
    wanted = {_key(pin): pin.hashes for pin in pins(lock).values()}
    found = []
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else []:
        hashes = wanted.get(_name_and_version(path.name), frozenset())
        known = {each.lower() for each in hashes if each.startswith("sha256:")}
        if known and _digest(path) not in known:
            found.append(path)
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


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
        UsageError: a name that is not ``x86_64-manylinux_2_NN``.
    """
    match = _NEWEST_TAG.match(platform)
    if match is None:
        raise UsageError(
            f"no wheels can be chosen for the platform {platform!r}",
            "a lock's platform is such as x86_64-manylinux_2_31",
        )
    major, minor = int(match[1]), int(match[2])
    newest = [f"manylinux_{major}_{number}_x86_64" for number in range(minor, _OLDEST - 1, -1)]
    return [*newest, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def fill(lock: Path, folder: Path, *, python: str, platform: str, told: Told) -> Wheelhouse:
    """Download what the folder lacks with pip; hashes are checked, and what is there stays.

    Packages come in small groups, each put into the folder when it is whole: pip itself would keep
    nothing of a download that ends before its end. Wheels of the lock with another hash are
    replaced. Where packages come from is pip's own settings.

    Raises:
        WheelhouseError: the folder cannot be written to, or a download failed, with pip's own
            words; the next call resumes.
    """
    text = read_lock(lock)
    total = len(pins(text))
    program = [*_program(), *_arguments(python, platform)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), TemporaryDirectory(prefix=_COMING_FOLDER, dir=folder) as coming:
            for wheel in damaged(text, folder):
                wheel.unlink()
            blocks = _blocks_of(text, look(text, folder).missing)
            for start in range(0, len(blocks), _AT_ONCE):
                some = blocks[start : start + _AT_ONCE]
                before = total - len(blocks) + start
                _fetch(program, some, Path(coming), folder, _progress(told, before, total))
    except OSError as error:
        hint = _ROOM if error.errno in _FULL else "name another folder with --output"
        raise WheelhouseError(f"cannot write to {folder}: {error.strerror}", hint) from error
    found = look(text, folder)
    if found.missing:
        raise WheelhouseError(
            f"pip left out {', '.join(found.missing[:5])}", "run it again: what has arrived stays"
        )
    return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs out, and remove what one that was killed has left.

    Raises:
        WheelhouseError: another run works there.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another run is filling {folder}"
            raise WheelhouseError(message, "wait for it, or name another folder") from error
        for left in folder.glob(f"{_COMING_FOLDER}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def _arguments(python: str, platform: str) -> list[str]:
    return [
        "download",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        *(f"--platform={tag}" for tag in platform_tags(platform)),
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]


def _blocks_of(lock: str, missing: Iterable[str]) -> list[str]:
    """The lock's own lines for these ``name==version``, one text for each package."""
    wanted = set(missing)
    blocks = logical_lines(lock)
    return [
        block
        for block in blocks
        if {f"{p.name}=={p.version}" for p in pins(block).values()} & wanted
    ]


def _progress(told: Told, before: int, total: int) -> Callable[[str], None]:
    """Called with each package that pip begins."""
    count = iter(range(before, total))
    return lambda name: told(name, next(count, total) / max(total, 1))


def _fetch(
    program: Iterable[str],
    blocks: list[str],
    coming: Path,
    folder: Path,
    told: Callable[[str], None],
) -> None:
    """Download these packages beside the wheelhouse, then move them into it."""
    asked = coming / "requirements.txt"
    asked.write_text("".join(f"{block}\n" for block in blocks), encoding="utf-8")
    arrived = coming / "wheels"
    command = [*program, f"--requirement={asked}", f"--dest={arrived}"]
    # pip unpacks below TMPDIR, which may be small; here the wheels must fit anyway.
    _pip(command, {**os.environ, "TMPDIR": str(coming)}, told)
    for wheel in arrived.iterdir():
        wheel.replace(folder / wheel.name)


def _pip(command: list[str], environment: dict[str, str], told: Callable[[str], None]) -> None:
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None  # a pipe
        try:
            for line in process.stdout:
                match = _COMING.match(line)
                if match:
                    told(f"{match['what'].rpartition('/')[2]} {match['version']}")
                said.append(line.rstrip())
        except KeyboardInterrupt:
            # A signal may have reached this process alone.
            process.terminate()
            raise
    if process.returncode:
        _refuse(process.returncode, said)


def _refuse(status: int, said: list[str]) -> NoReturn:
    errors = [line for line in said if "ERROR" in line] or said[-10:]
    full = any("No space left on device" in line for line in said)
    raise WheelhouseError(
        "\n".join([f"pip could not download the wheels (status {status})", *errors[:10]]),
        f"{_ROOM}; then run it again: what has arrived stays"
        if full
        else "run it again: what has arrived stays",
    )


def _program() -> list[str]:
    """pip of this environment, else one that uv fetches: uv itself downloads no wheels."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    from uv import find_uv_bin

    return [find_uv_bin(), "tool", "run", "pip"]
