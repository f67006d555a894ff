"""Kernel settings that beds share: the first raises them, the last puts them back."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from glm5_deploy.demo import network
from glm5_deploy.demo.network import Network


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    registry = tmp_path / "registry"
    registry.mkdir()
    inotify, forwarding = tmp_path / "max_user_instances", tmp_path / "ip_forward"
    inotify.write_text("128\n")
    forwarding.write_text("0\n")
    monkeypatch.setattr(network, "REGISTRY", registry)
    monkeypatch.setattr(network, "INOTIFY", inotify)
    monkeypatch.setattr(network, "FORWARDING", forwarding)
    monkeypatch.setattr(network, "run", lambda *_, **__: "")
    monkeypatch.setattr(network, "succeeds", lambda *_: False)
    return inotify


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_the_last_bed_restores_what_the_first_one_found(
    setting: Path, order: tuple[int, ...]
) -> None:
    for number in (1, 2, 3):
        Network(number).up(1)
        assert int(setting.read_text()) == network.INSTANCES
    for number in order[:-1]:
        Network(number).down(1)
        assert int(setting.read_text()) == network.INSTANCES
    Network(order[-1]).down(1)
    assert int(setting.read_text()) == 128


def test_a_higher_setting_stays(setting: Path) -> None:
    setting.write_text("8192\n")
    Network(1).up(1)
    assert int(setting.read_text()) == 8192
    Network(1).down(1)
    assert int(setting.read_text()) == 8192


@pytest.mark.usefixtures("setting")
def test_forwarding_is_shared_in_the_same_way() -> None:
    Network(1).open_nat()
    Network(2).open_nat()
    assert network.FORWARDING.read_text() == "1"
    Network(1).down(0)
    assert network.FORWARDING.read_text() == "1"
    Network(2).down(0)
    assert network.FORWARDING.read_text() == "0"


def test_a_bed_that_was_killed_on_its_way_up_keeps_the_first_value(setting: Path) -> None:
    Network(1).up(1)
    Network(1).up(1)
    Network(1).down(1)
    assert int(setting.read_text()) == 128
