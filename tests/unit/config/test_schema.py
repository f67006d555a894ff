"""The committed schemas are those of the models, and take what the loader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from glm5_deploy.config.schema import schema_text
from glm5_deploy.config.yaml import read
from jsonschema import Draft202012Validator

from tests.unit.config.cases import HERE, folders

INVENTORY = HERE.parents[2] / "inventory"
KINDS: list[tuple[Literal["inventory", "profile"], str]] = [
    ("inventory", "schema.json"),
    ("profile", "profile.schema.json"),
]


def _validator(kind: Literal["inventory", "profile"]) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema_text(kind)))


def _mistakes(kind: Literal["inventory", "profile"], data: Any) -> list[str]:  # noqa: ANN401
    return [error.message for error in _validator(kind).iter_errors(data)]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_the_committed_schema_is_up_to_date(
    kind: Literal["inventory", "profile"], name: str
) -> None:
    flag = " --profile" if kind == "profile" else ""
    assert (INVENTORY / name).read_text(encoding="utf-8") == schema_text(kind), (
        f"run: glm5-deploy inventory schema{flag} > inventory/{name}"
    )
    Draft202012Validator.check_schema(json.loads(schema_text(kind)))


@pytest.mark.parametrize(
    "file",
    [INVENTORY / "example.yml", *(case / "inventory.yml" for case in folders("good"))],
    ids=lambda file: file.parent.name,
)
def test_good_inventories_fit(file: Path) -> None:
    assert _mistakes("inventory", read(file).plain()) == []


@pytest.mark.parametrize(
    "file",
    [*(INVENTORY / "profiles").glob("*.yml"), *(HERE / "good").glob("*/profiles/*.yml")],
    ids=lambda file: f"{file.parents[1].name}-{file.stem}",
)
def test_good_profiles_fit(file: Path) -> None:
    assert _mistakes("profile", read(file).plain()) == []


@pytest.mark.parametrize(
    "data",
    [
        {"host": {}},
        {"hosts": {"bw1": {"prot": 1}}},
        {"hosts": {"b w": {}}},
        {"hosts": {"bw1": {"connection": {"port": 0}}}},
        {"hosts": {"bw1": {"become": {"password": "literal"}}}},
        {"hosts": {"bw1": {"override": {"serve": {"prot": 1}}}}},
        {"groups": {"g": {"hosts": "bw1"}}},
    ],
)
def test_mistakes_do_not_fit_an_inventory(data: dict[str, Any]) -> None:
    assert len(_mistakes("inventory", data)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"serve": {"port": "8000"}},
        {"serve": {"port": 70000}},
        {"gpus": {"count": -1}},
        {"secrets": {"KEY": "literal"}},
        {"environment": {"A B": "x"}},
        {"engine": {"command": []}},
    ],
)
def test_mistakes_do_not_fit_a_profile(change: dict[str, Any]) -> None:
    data = {"name": "p", "model": {"name": "m"}}
    assert _mistakes("profile", data) == []
    assert len(_mistakes("profile", data | change)) == 1


def test_a_template_fits_wherever_a_profile_has_a_value() -> None:
    data = {
        "name": "{{ vars.a }}",
        "model": {"name": "m", "required": "{{ vars.list }}"},
        "serve": {"port": "{{ vars.port }}"},
        "gpus": {"count": "{% if 1 %}1{% endif %}", "devices": "{{ vars.list }}"},
        "secrets": {"KEY": "{{ vars.reference }}"},
        "smoke": {"chat": "{{ vars.chat }}"},
    }
    assert _mistakes("profile", data) == []
