"""Every shell script that is sent to a host parses."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import glm5_deploy
import pytest


def constants() -> Iterator[tuple[str, str]]:
    """Module-level texts that look like scripts: several words with shell syntax."""
    for module_info in pkgutil.walk_packages(glm5_deploy.__path__, "glm5_deploy."):
        if module_info.name.endswith("__main__"):
            continue
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, str) and "$1" in value:
                yield f"{module_info.name}.{name}", value


SCRIPTS = dict(constants())
FILES = sorted((Path(glm5_deploy.__file__).parent / "onhost").glob("*.sh"))


def test_they_are_found() -> None:
    assert len(SCRIPTS) >= 10
    assert len(FILES) == 2


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_constant_parses(name: str) -> None:
    check(SCRIPTS[name])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_parses(path: Path) -> None:
    check(path.read_text())


def check(text: str) -> None:
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
