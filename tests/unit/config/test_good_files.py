"""What good inventories come to, and where each value came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.config.load import check_inventory, load_inventory
from glm5_deploy.config.merge import Origin
from glm5_deploy.config.show import Shown, collect

from tests.unit.config.cases import folders


@pytest.mark.parametrize("case", folders("good"), ids=lambda path: path.name)
def test_values_and_origins(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    loaded = load_inventory(case / "inventory.yml")
    assert check_inventory(loaded) == []
    shown = collect(loaded, loaded.host_names)
    wanted = _expected(case)
    assert {name: _actual(shown[name], wanted[name], case) for name in shown} == wanted


def _expected(case: Path) -> dict[str, Any]:
    text = (case / "expected.yml").read_text(encoding="utf-8")
    text = text.replace("HERE", str(case)).replace("HOME", "/home/me")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def _actual(shown: Shown, wanted: dict[str, Any], case: Path) -> dict[str, Any]:
    """Of what is shown, the parts that the case speaks of."""
    origins = {".".join(map(str, path)): origin for path, origin in shown.origins.items()}
    actual = {
        "groups": shown.config["groups"],
        "values": {path: _at(shown, path) for path in wanted.get("values", {})},
        "origins": {path: _place(origins[path], case) for path in wanted.get("origins", {})},
    }
    return {key: value for key, value in actual.items() if key in wanted}


def _place(origin: Origin, case: Path) -> str:
    return f"{origin.level} {origin.file.relative_to(case)}:{origin.line}"


def _at(shown: Shown, path: str) -> object:
    value: Any = json.loads(json.dumps(shown.config))
    for part in path.split("."):
        value = value[part]
    return value
