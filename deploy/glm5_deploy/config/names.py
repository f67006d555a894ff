"""Names of an inventory's hosts and groups, fast enough for shell completion.

It reads the one file and judges nothing; `load` does that.
"""

from __future__ import annotations

from pathlib import Path

from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.yaml import read


def host_names(inventory: Path) -> list[str]:
    """In the inventory's order; none where the file does not parse."""
    return _keys(inventory, "hosts")


def group_names(inventory: Path) -> list[str]:
    """In the inventory's order; none where the file does not parse."""
    return _keys(inventory, "groups")


def _keys(inventory: Path, section: str) -> list[str]:
    try:
        return list(read(inventory).below(section))
    except ConfigErrors:
        return []
