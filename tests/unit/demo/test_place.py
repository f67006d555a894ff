"""The demo's inventory: what is committed, completed for this machine."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml
from glm5_deploy.config.load import load_inventory, resolve
from glm5_deploy.demo.bed import Bed, BedError, BedHost
from glm5_deploy.demo.place import HOST, Place
from glm5_deploy.demo.tiny_model import FOLDER
from glm5_deploy.demo.wheelhouse import Wheelhouse

COMMITTED = Path(__file__).parents[3] / "inventory" / "demo.yml"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "demo")
    place.folder.mkdir(parents=True)
    (tmp_path / "lock.txt").write_text("")
    (tmp_path / "wheels").mkdir()
    bed = Bed(tmp_path / "bed")
    bed.hosts = {HOST: BedHost(HOST, 0, bed)}
    bed.folder.mkdir()
    for file in (bed.key, bed.ssh_config, bed.known_hosts):
        file.touch()
    wheels = Wheelhouse(tmp_path / "wheels", tmp_path / "lock.txt", "2.13.0+cpu")
    place.write_api_key()
    place.write_inventory(bed, wheels, "3.13")
    return place


def test_the_completed_inventory_loads(place: Place, tmp_path: Path) -> None:
    [target] = resolve(load_inventory(place.inventory))
    assert target.name == HOST
    assert target.settings.connection.address == "10.89.0.10"
    assert target.settings.wheelhouse == tmp_path / "wheels"
    assert target.profile.model.source == FOLDER
    assert target.profile.engine.lock == str(tmp_path / "lock.txt")
    assert target.profile.engine.python == "3.13"
    assert target.profile.secrets == {"VLLM_API_KEY": f"${{file:{place.api_key}}}"}


def test_what_is_committed_stays(place: Place) -> None:
    committed = yaml.safe_load(COMMITTED.read_text())["hosts"][HOST]
    written = yaml.safe_load(place.inventory.read_text())["hosts"][HOST]
    assert written["profile"] == committed["profile"]
    assert written["connection"].items() >= committed["connection"].items()


def test_the_key_is_private_and_stays(place: Place) -> None:
    assert stat.S_IMODE(place.api_key.stat().st_mode) == 0o600
    key = place.api_key.read_text()
    assert len(key) > 20
    place.write_api_key()
    assert place.api_key.read_text() == key


@pytest.mark.parametrize("name", ["with space", "a,b", "a:b", "a\\b"])
def test_a_bed_refuses_paths_that_overlayfs_misreads(name: str, tmp_path: Path) -> None:
    with pytest.raises(BedError):
        Bed(tmp_path / name)
