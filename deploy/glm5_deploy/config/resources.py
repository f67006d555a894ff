"""Files that ship with the program: templates, profiles and locks."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent.parent
_IN_CHECKOUT = {
    "templates": Path("templates"),
    "profiles": Path("inventory/profiles"),
    "locks": Path("inventory/locks"),
}


@lru_cache(maxsize=3)
def resource_dir(kind: Literal["templates", "profiles", "locks"]) -> Path:
    """The folder in the installed package, else in the checkout around it; it may not exist."""
    packaged = _PACKAGE / "_data" / kind
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / _IN_CHECKOUT[kind]


def find_lock(name: str, base: Path) -> Path | None:
    """A lock by a path from ``base``, or by the name it ships under, with its suffix or without."""
    path = base / Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if "/" in name:
        return None
    shipped = resource_dir("locks")
    candidates = (shipped / name, shipped / f"{name}.txt", shipped / f"{name}.lock")
    return next((file for file in candidates if file.is_file()), None)


def lock_names() -> list[str]:
    """Names of the locks that ship with the program."""
    folder = resource_dir("locks")
    return sorted({f.stem for f in folder.glob("*") if f.suffix in (".txt", ".lock")})
