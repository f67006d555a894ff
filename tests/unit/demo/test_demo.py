"""What the demo says, without a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from glm5_deploy.cli import demo
from glm5_deploy.demo import rootfs
from glm5_deploy.demo.place import HOST, Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path / "demo")
    bed = place.bed()
    monkeypatch.setattr(rootfs, "require_prerequisites", lambda: None)
    assert not bed.folder.exists()
    return place


def test_rollback_follows_a_change(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glm5_deploy.demo.bed.Bed.ssh", lambda *_: ["ssh", HOST])
    demo._what_next(place, "inventory.yml")
    said = capsys.readouterr().out
    assert said.index("edit `override`") < said.index("deploy that change") < said.index("rollback")
    assert max(map(len, said.splitlines())) <= 80


def test_down_without_a_demo_says_so(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    demo._remove(place)
    assert capsys.readouterr().out == f"there is no demo in {place.folder}\n"


def test_down_says_first_what_takes_long(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.folder.mkdir()
    demo._remove(place)
    first, last = capsys.readouterr().out.splitlines()
    assert "removing its files" in first
    assert "is gone" in last
    assert not place.folder.exists()


def test_a_root_file_system_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLM5_BED_ROOTFS", raising=False)
    monkeypatch.setattr(rootfs, "suite", lambda: "bookworm")
    folder = rootfs.rootfs_folder("bare", tmp_path)
    folder.mkdir()
    assert rootfs.build_rootfs("bare", tmp_path) == folder
