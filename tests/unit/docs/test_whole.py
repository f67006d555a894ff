"""The pages that people write leave out no command and no exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from glm5_deploy.cli.app import app
from glm5_deploy.errors import ExitCode

DOCS = Path(__file__).parents[3] / "docs"
WRITTEN = ("index.md", "operations.md", "blackwell.md", "inventory.md")
PROSE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in WRITTEN)


def commands(group: Any, prefix: str = "") -> Iterator[str]:  # noqa: ANN401  # typer's is not public
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))))
def test_every_command_is_told_of(command: str) -> None:
    assert re.search(rf"(?:glm5-deploy |`){command}\b", PROSE)


def test_every_exit_code_has_a_row() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("\n\nWhere")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(
        ExitCode
    )
