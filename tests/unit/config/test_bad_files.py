"""Each bad file gives exactly the text beside it: every mistake, at its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.load import adhoc, check_inventory, load_inventory

from tests.unit.config.cases import expected, files, folders


@pytest.mark.parametrize("case", files("bad_inventories"), ids=lambda path: path.stem)
def test_an_inventory(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.parent)
    with pytest.raises(ConfigErrors) as caught:
        check_inventory(load_inventory(Path(case.name)))
    assert caught.value.message == expected(case)


@pytest.mark.parametrize("case", files("bad_profiles"), ids=lambda path: path.stem)
def test_a_profile(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.parent)
    with pytest.raises(ConfigErrors) as caught:
        adhoc("root@192.0.2.1", case.name)
    assert caught.value.message == expected(case)


@pytest.mark.parametrize("case", folders("bad_folders"), ids=lambda path: path.name)
def test_several_files(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case)
    with pytest.raises(ConfigErrors) as caught:
        check_inventory(load_inventory(Path("inventory.yml")))
    assert caught.value.message == expected(case)


@pytest.mark.parametrize(
    "case", [*files("bad_inventories"), *files("bad_profiles")], ids=lambda path: path.stem
)
def test_no_expected_text_shows_a_secret(case: Path) -> None:
    text = expected(case)
    for secret in ("hunter2", "739154", "sk-literal"):
        assert secret not in text
