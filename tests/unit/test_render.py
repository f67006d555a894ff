"""``render`` as a command: what it shows of a release whose secrets it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from glm5_deploy.cli.app import app
from typer.testing import CliRunner

PROFILE = "name: p\nmodel: {name: m}\nengine: {command: [/srv/serve]}\n"


@pytest.mark.parametrize(
    ("more", "release"),
    [("", r"[0-9a-f]{12}"), ("secrets: {VLLM_API_KEY: '${env:NOT_SET_HERE}'}\n", "RELEASE")],
)
def test_an_id_is_shown_only_where_it_is_right(more: str, release: str, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yml").write_text(PROFILE + more)
    (tmp_path / "inventory.yml").write_text("hosts: {h: {profile: p}}\n")
    done = CliRunner().invoke(app, ["render", "-i", str(tmp_path / "inventory.yml"), "--json"])
    unit = json.loads(done.stdout)["h"]["unit"]
    assert set(re.findall(r"/releases/([^/\s\"]+)/", unit)) != set()
    assert all(re.fullmatch(release, name) for name in re.findall(r"/releases/([^/\s\"]+)/", unit))
