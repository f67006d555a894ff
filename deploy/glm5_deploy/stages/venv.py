"""The environment: built on the host by uv from a hashed lock, once for each lock, wheel and
interpreter.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from glm5_deploy.config.models import Base
from glm5_deploy.hosts.command import Command, command
from glm5_deploy.stages.change import Change, Put, Rsync, Step, Transient
from glm5_deploy.stages.desired import Desired, Venv
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.system import python_path

STAGE = "venv"


def uv_binary() -> Path:
    """uv as installed beside this program; the same file runs on the host."""
    from uv import find_uv_bin

    return Path(find_uv_bin()).resolve()


def uv_on_host(desired: Desired) -> PurePosixPath:
    """The uv that the host uses: ours, carried over."""
    return desired.paths.uploads / "uv" / "uv"


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Build the environment unless a finished one of this name is there."""
    venv = desired.venv
    if venv is None or venv.identifier in observed.deployment.venvs:
        return []
    uv = uv_on_host(desired)
    if venv.base is not None:
        return [_layered(desired, venv, venv.base, uv)]
    steps: tuple[Step, ...] = (
        Rsync(uv_binary(), uv.parent),
        *_wheelhouse(desired, venv),
        Put(_lock_path(desired, venv), venv.lock),
        Transient(
            f"glm5-job-venv-{venv.identifier}",
            _build(desired, observed, venv, uv),
            limit=desired.target.profile.limits.install,
        ),
    )
    detail = f"Python {venv.python}, {venv.lock_name}"
    return [Change(STAGE, "create", str(desired.paths.venv(venv.identifier)), detail, steps)]


def _layered(desired: Desired, venv: Venv, base: Base, uv: PurePosixPath) -> Change:
    """On the host's own vLLM: seconds, and no package is downloaded."""
    paths = desired.paths
    folder = paths.venv(venv.identifier)
    marker = "" if venv.wheel is not None else str(folder / ".done")
    layer = command(
        base.python, paths.library / "layer_venv.py", folder, uv, marker, *base.site
    )  # fmt: skip
    steps = (
        Rsync(uv_binary(), uv.parent),
        Transient(f"glm5-job-venv-{venv.identifier}", layer, limit=300),
    )
    return Change(STAGE, "create", str(folder), f"layered on {base.python}", steps)


def _lock_path(desired: Desired, venv: Venv) -> PurePosixPath:
    return desired.paths.cache / f"lock-{venv.identifier}.txt"


def _wheelhouse_path(desired: Desired, venv: Venv) -> PurePosixPath | None:
    if venv.wheelhouse is None:
        return None
    return desired.paths.uploads / "wheels" / venv.lock_name.removesuffix(".txt")


def _wheelhouse(desired: Desired, venv: Venv) -> tuple[Rsync, ...]:
    path = _wheelhouse_path(desired, venv)
    return () if path is None or venv.wheelhouse is None else (Rsync(venv.wheelhouse, path),)


def _build(desired: Desired, observed: Observed, venv: Venv, uv: PurePosixPath) -> Command:
    paths = desired.paths
    folder = paths.venv(venv.identifier)
    marker = "" if venv.wheel is not None else str(folder / ".done")
    return command(
        "sh", paths.library / "build_venv.sh", folder, python_path(desired, observed), uv,
        _lock_path(desired, venv), paths.cache / "uv", _wheelhouse_path(desired, venv) or "",
        venv.index_url or "", marker,
    )  # fmt: skip
