"""The glm5-kernel wheel: the one that ships with this program, or one built from the checkout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from glm5_deploy.errors import Glm5Error

_PACKAGE = Path(__file__).resolve().parent
_EPOCH = "1580601600"
"""2020-02-02: the time of every file in the wheel, so that equal sources make equal bytes."""


class KernelWheelError(Glm5Error):
    """There is no glm5-kernel wheel and none could be built."""


def kernel_wheel(cache: Path) -> Path:
    """The wheel; from a checkout it is built again only when a source changed.

    The same sources and the same hatchling make the same bytes: an environment's name holds their
    hash. Where nothing changed this looks at names, sizes and times alone.

    Args:
        cache: folder that built wheels are kept in.

    Raises:
        KernelWheelError: no wheel ships, there is no checkout, or the build failed.
    """
    shipped = sorted((_PACKAGE / "_data" / "wheels").glob("glm5_kernel-*.whl"))
    if shipped:
        return shipped[-1]
    return built_wheel(_PACKAGE.parents[1] / "kernel", cache / "kernel-wheels")


def built_wheel(kernel: Path, cache: Path) -> Path:
    """A wheel of the project in ``kernel``, out of ``cache`` where it is there.

    Raises:
        KernelWheelError: there is no such project, or the build failed.
    """
    if not (kernel / "pyproject.toml").is_file():
        raise KernelWheelError(
            "the glm5-kernel wheel is not part of this installation",
            "install glm5-deploy from a wheel, or run it from a checkout",
        )
    seen = cache / f"{hashlib.sha256(str(kernel).encode()).hexdigest()[:12]}.json"
    stamp: list[list[str | int]] = [
        [name, info.st_size, info.st_mtime_ns] for name, info in _listing(kernel)
    ]
    known = _known(seen, stamp)
    if known is not None:
        return known
    folder = cache / _digest(kernel)
    wheels = list(folder.glob("*.whl"))
    wheel = wheels[0] if wheels else _build(kernel, folder)
    record = json.dumps({"stamp": stamp, "wheel": str(wheel)})
    seen.write_text(record, encoding="utf-8")
    return wheel


def _known(seen: Path, stamp: list[list[str | int]]) -> Path | None:
    try:
        record = json.loads(seen.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wheel = Path(record["wheel"])
    return wheel if record["stamp"] == stamp and wheel.is_file() else None


def _listing(kernel: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every source with its size and time, in a fixed order."""
    for folder, folders, files in os.walk(kernel):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "dist"))
        for name in sorted(files):
            path = Path(folder, name)
            if not name.endswith(".pyc"):
                yield str(path.relative_to(kernel)), path.stat()


def _digest(kernel: Path) -> str:
    digest = hashlib.sha256()
    for name, _ in _listing(kernel):
        content = (kernel / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _build(kernel: Path, folder: Path) -> Path:
    """With this environment's hatchling, else with one that uv fetches."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        done = subprocess.run(
            _builder(Path(scratch), kernel),
            cwd=kernel,
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH, "UV_SYSTEM_CERTS": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
            raise KernelWheelError(f"building the glm5-kernel wheel failed:\n{said}")
        folder.mkdir(exist_ok=True)
        # renamed into place, so that a killed build leaves nothing that looks finished
        return wheels[0].rename(folder / wheels[0].name)


def _builder(output: Path, kernel: Path) -> list[str]:
    if find_spec("hatchling"):
        return [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    from uv import find_uv_bin

    return [find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", str(output), str(kernel)]
