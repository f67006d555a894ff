"""What `audit` and `releases` print of what they read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from glm5_deploy.cli.admin import _print_entries
from glm5_deploy.cli.releases import _print_releases, _row
from glm5_deploy.report.outcome import HostOutcome, Report
from glm5_deploy.stages.observed import DeploymentFacts

ENTRY: dict[str, Any] = {
    "at": 0,
    "command": "up",
    "exit_code": 5,
    "hosts": {
        "bw1": {"status": "changed", "release": "3f2a"},
        "bw2": {"status": "failed", "release": None},
    },
    "by": None,
}


def test_entries_of_this_machine_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    _print_entries("here", [ENTRY], json=False)
    out = capsys.readouterr().out
    assert out.endswith("  up  exit_code=5 hosts=bw1:changed:3f2a,bw2:failed\n")


def test_entries_as_json_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _print_entries("here", [ENTRY], json=True)
    assert json.loads(capsys.readouterr().out) == [ENTRY]


@pytest.mark.parametrize(
    ("name", "roles"),
    [("a", ["current"]), ("b", ["previous"]), ("c", ["reverted"]), ("d", [])],
)
def test_roles_of_releases(name: str, roles: list[str]) -> None:
    facts = DeploymentFacts(
        current="a", previous="b", releases=("a", "b", "c", "d"), reverted={"reverted": "c"}
    )
    assert _row(name, facts) == {"id": name, "roles": roles}


def test_who_has_none_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    _print_entries("bw1", [], json=False)
    assert capsys.readouterr().out.startswith("bw1  no entries: ")
    read = HostOutcome("bw1", "unchanged", data={"releases": []})
    away = HostOutcome("bw2", "unreachable")
    _print_releases(Report("releases", (read, away)))
    assert capsys.readouterr().out == "bw1  no releases: `glm5-deploy up` makes one\n"
