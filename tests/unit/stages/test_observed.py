"""Files that are read together in one fact."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.config.models import Target
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts.command import Command
from glm5_deploy.hosts.facts.fact import FactOutput
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.stages.observed import deployment_fact_list, observe, parse_files

from tests.unit.stages.situation import desired


def read(*paths: PurePosixPath) -> dict[str, str | None]:
    """What the fact's own script says about these files here."""
    fact = next(f for f in deployment_fact_list(_target()) if f.name == "files")
    shell, flag, text, name, *_ = fact.command.words()
    words = [shell, flag, text, name, *(str(path) for path in paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return parse_files(paths, FactOutput(done.returncode, done.stdout, done.stderr))


def _target() -> Target:
    return desired().target


def test_contents_come_back_as_they_are(tmp_path: Path) -> None:
    contents = {
        "plain": "a\nb\n",
        "empty": "",
        "dash": "-",
        "odd name": "ü '\"$x\n\n",
        "no end": "x",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    paths = [PurePosixPath(tmp_path / name) for name in (*contents, "missing")]
    assert read(*paths) == {
        **{str(tmp_path / name): text for name, text in contents.items()},
        str(tmp_path / "missing"): None,
    }


def test_what_was_not_read_in_time_counts_as_missing() -> None:
    paths = (PurePosixPath("/a"), PurePosixPath("/b"))
    assert parse_files(paths, FactOutput(124, "eA==\n", "")) == {"/a": "x", "/b": None}


def test_a_python_that_was_carried_is_looked_at() -> None:
    asked: list[str] = []

    def keep(wanted: Command) -> bool:
        asked.extend(wanted.words())
        return True

    host = FakeHost("bw1", expected=[Expected(keep, raises=UnreachableError("enough"))])
    with pytest.raises(UnreachableError):
        observe(host, desired(engine={"python": "3.12"}).target)
    assert any("/opt/glm5/python/3.12/bin/python3.12" in word for word in asked)
