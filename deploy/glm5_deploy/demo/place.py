"""Where a demo keeps what it makes, and the inventory that joins it."""

from __future__ import annotations

import secrets
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm5_deploy.demo import tiny_model
from glm5_deploy.demo.bed import Bed
from glm5_deploy.demo.wheelhouse import Wheelhouse
from glm5_deploy.run.local import state_folder

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1]

HOST = "demo"
HEADER = """\
# Written by `glm5-deploy demo`; a new demo writes it again. What it adds to is inventory/demo.yml.
"""


@dataclass(frozen=True)
class Place:
    """A demo's own folder.

    Args:
        folder: API key and inventory lie here.
    """

    folder: Path

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yml"

    @property
    def api_key(self) -> Path:
        return self.folder / "api-key"

    def bed(self) -> Bed:
        """The host's files lie elsewhere: they take 3 GB, and a bed's path may hold no spaces."""
        return Bed(Path("/var/tmp") / f"glm5-demo-{zlib.crc32(str(self.folder).encode()):08x}")

    def write_api_key(self) -> None:
        """A new key, readable by its owner alone, unless there is one."""
        if not self.api_key.is_file():
            self.api_key.touch(mode=0o600)
            self.api_key.write_text(f"{secrets.token_urlsafe(24)}\n")

    def write_inventory(self, bed: Bed, wheels: Wheelhouse, python: str) -> None:
        """The committed inventory with what differs from machine to machine."""
        import yaml

        document = yaml.safe_load(_template().read_text(encoding="utf-8"))
        document["hosts"][HOST] = completed(document["hosts"][HOST], self, bed, wheels, python)
        text = HEADER + yaml.safe_dump(document, sort_keys=False)
        self.inventory.write_text(text, encoding="utf-8")

    def exists(self) -> bool:
        """Whether there is anything to remove."""
        return self.folder.exists() or self.bed().folder.exists()

    def remove(self) -> None:
        """Everything but what is cached for the next demo."""
        self.bed().down()
        shutil.rmtree(self.folder, ignore_errors=True)


def completed(
    host: dict[str, Any], place: Place, bed: Bed, wheels: Wheelhouse, python: str
) -> dict[str, Any]:
    """A host's entry with this machine's paths and addresses; what it has already stays."""
    return {
        **host,
        "connection": {**bed.connection(HOST), **host["connection"]},
        "wheelhouse": str(wheels.folder),
        "override": {
            "model": {"source": str(tiny_model.FOLDER)},
            "engine": {"lock": str(wheels.lock), "python": python},
            "secrets": {"VLLM_API_KEY": f"${{file:{place.api_key}}}"},
        },
    }


def default_place() -> Place:
    """``.glm5/demo`` in a checkout; elsewhere the state folder."""
    if (_CHECKOUT / "inventory" / "demo.yml").is_file():
        return Place(_CHECKOUT / ".glm5" / "demo")
    return Place(state_folder() / "demo")


def _template() -> Path:
    packaged = _PACKAGE / "_data" / "demo.yml"
    return packaged if packaged.is_file() else _CHECKOUT / "inventory" / "demo.yml"


def python_of(rootfs: Path) -> str:
    """The version of a root file system's Python, such as ``3.11``."""
    binary = (rootfs / "usr/bin/python3").readlink()
    return binary.name.removeprefix("python")
