"""Preflight of the lock: whether this host can take it, and whether the wheels for it are here."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from glm5_deploy.errors import UsageError
from glm5_deploy.locks.text import Recipe, read_recipe
from glm5_deploy.locks.wheels import look
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.desired import Desired, Venv
from glm5_deploy.stages.observed import Observed

NAME = "lock"
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)$")


def rows(desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """One row where an environment of a lock is still to be built, else none."""
    venv = desired.venv
    if venv is None or venv.base is not None:
        return ()
    if venv.identifier in observed.deployment.venvs:
        return ()
    wrong = _misfit(venv, observed) or _incomplete(desired, venv)
    if wrong is not None:
        return (Check(NAME, "failed", *wrong),)
    return (Check(NAME, "passed", f"{venv.lock_name}, {_source(venv)}"),)


def _source(venv: Venv) -> str:
    if venv.wheelhouse is not None:
        return f"wheels from {venv.wheelhouse}"
    return "from the package index"


def recipe_of(venv: Venv) -> Recipe | None:
    """How the lock was made, where it says so."""
    try:
        return read_recipe(venv.lock.decode(errors="replace"), venv.lock_name)
    except UsageError:
        return None


def _misfit(venv: Venv, observed: Observed) -> tuple[str, str] | None:
    """A Python or C library that the lock's wheels are not for."""
    recipe = recipe_of(venv)
    if recipe is None:
        return None
    if recipe.python != venv.python:
        detail = f"{venv.lock_name} is for Python {recipe.python}, engine.python is {venv.python}"
        return detail, f"set engine.python: '{recipe.python}', or use another lock"
    libc, oldest = observed.system.machine.libc, _GLIBC.search(recipe.platform)
    if libc and oldest and libc < (int(oldest[1]), int(oldest[2])):
        have = ".".join(map(str, libc))
        detail = f"glibc {have} here, {venv.lock_name} needs {oldest[1]}.{oldest[2]}"
        return detail, "use a host with a newer distribution, or a lock for an older platform"
    return None


def _incomplete(desired: Desired, venv: Venv) -> tuple[str, str] | None:
    if venv.wheelhouse is None:
        return None
    missing = _missing(venv.lock.decode(errors="replace"), venv.wheelhouse)
    if not missing:
        return None
    first = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" * (len(missing) > 3))
    lock = desired.target.profile.engine.lock
    hint = f"run `glm5-deploy wheelhouse {lock} --output {venv.wheelhouse}`"
    return f"{venv.wheelhouse} lacks {first}", hint


@lru_cache(maxsize=8)
def _missing(lock: str, folder: Path) -> tuple[str, ...]:
    """Hosts that share a wheelhouse look at it once."""
    return look(lock, folder).missing
