"""Golden tokens are read with the profile, not after an hour of loading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from glm5_deploy.config.load import adhoc
from glm5_deploy.errors import UsageError

GOOD = {"format": 1, "prompts": [{"name": "short", "prompt": [1, 2], "tokens": [3]}]}


def load(folder: Path, golden: str) -> None:
    (folder / "golden.json").write_text(golden)
    profile = {
        "name": "p",
        "model": {"name": "m"},
        "engine": {"command": ["/opt/vllm/bin/vllm", "serve", "{model}"]},
        "smoke": {"golden": "golden.json"},
    }
    (folder / "p.yml").write_text(yaml.safe_dump(profile))
    adhoc("root@192.0.2.1", str(folder / "p.yml"))


def test_what_make_tiny_writes_is_taken(tmp_path: Path) -> None:
    load(tmp_path, json.dumps(GOOD))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "golden.json: Expecting value"),
        ("{}", "golden.json: 'prompts'"),
        (json.dumps({**GOOD, "format": 2}), "format 2; 1 is right"),
        (json.dumps({**GOOD, "prompts": []}), "holds no prompt"),
    ],
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, text)
    assert message in str(refused.value)
    assert "p.yml:" in str(refused.value)
    assert "smoke.golden" in str(refused.value)
