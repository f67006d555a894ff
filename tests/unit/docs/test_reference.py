"""The generated pages of the manual are those of the code, and no page has overlong lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reference.py", "--check"],
        env={"PYTHONPATH": str(ROOT / "deploy"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=str)
def test_lines_are_short(page: Path) -> None:
    """Tables, pictures and what a program printed may be longer: they cannot be wrapped."""
    fenced, long = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > 120 and not fenced and not line.startswith(("|", "<", "![")):
            long.append(number)
    assert not long
