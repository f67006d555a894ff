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
