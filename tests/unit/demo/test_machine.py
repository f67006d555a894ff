"""What hosts inherit: files of a machine in, settings out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from glm5_deploy.demo.machine import (
    PipSettings,
    apt_options,
    apt_sources,
    parse_pip_config,
    uv_configuration,
)

CASES = yaml.safe_load((Path(__file__).parent / "machine.yml").read_text())


@pytest.mark.parametrize("case", CASES["apt"], ids=lambda case: case["name"])
def test_apt_sources(case: dict[str, object], tmp_path: Path) -> None:
    files = case["files"]
    assert isinstance(files, dict)
    for name, text in files.items():
        path = tmp_path / "apt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert apt_sources(str(case["suite"]), tmp_path) == case["entries"]


@pytest.mark.parametrize("case", CASES["pip"], ids=lambda case: case["name"])
def test_pip_settings(case: dict[str, object]) -> None:
    settings = parse_pip_config(str(case["config"]))
    assert settings.index == case["index"]
    assert list(settings.extra) == case["extra"]
    assert list(settings.find_links) == case["find_links"]


def test_uv_gets_the_same_places() -> None:
    pip = PipSettings("https://index.example/simple", ("file:///a", "https://b.example"), ("/w",))
    assert tomllib.loads(uv_configuration(pip)) == {
        "system-certs": True,
        "index-url": "https://index.example/simple",
        "extra-index-url": ["https://b.example"],
        "find-links": ["/w"],
    }


def test_only_local_folders_that_exist_are_shared(tmp_path: Path) -> None:
    pip = PipSettings(
        None, (f"file://{tmp_path}",), (str(tmp_path), "/nowhere", "https://x.example")
    )
    assert pip.folders() == [tmp_path]


def test_apt_options_are_those_about_fetching(tmp_path: Path) -> None:
    folder = tmp_path / "apt" / "apt.conf.d"
    folder.mkdir(parents=True)
    (folder / "10proxy").write_text('Acquire::http::Proxy "http://proxy.example:3128";\n')
    (folder / "20other").write_text('APT::Get::Assume-Yes "true";\n')
    assert apt_options(tmp_path) == [folder / "10proxy"]
