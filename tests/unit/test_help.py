"""Help of all commands: values by name, no cut sentences."""

from __future__ import annotations

import re

import pytest
from glm5_deploy.cli.app import app
from typer.testing import CliRunner

COMMANDS = (
    "up", "plan", "smoke", "bench", "logs", "status", "preflight", "releases", "rollback",
    "restart", "down", "render", "unlock", "audit", "init", "demo", "inventory check",
    "inventory show", "inventory schema",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_values_have_names(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    assert "Usage:" in shown
    assert not re.findall(r"<(?:list|int|str|path|float)\b.*?>", shown.partition("Options:")[2])
    assert "Say more.  [default" not in shown


@pytest.mark.parametrize("words", [[], ["inventory"]])
def test_the_list_of_commands_is_whole(words: list[str]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"]).stdout
    listed = shown.partition("Commands:")[2]
    assert len(re.findall(r"^  \w", listed, re.MULTILINE)) >= 3
    assert "..." not in listed
    assert listed.rstrip().endswith(".")
