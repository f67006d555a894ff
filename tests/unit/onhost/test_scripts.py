"""Scripts that run on hosts, run here in folders of a test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import glm5_deploy
import pytest
from glm5_deploy.run.lock import _ACQUIRE, _RELEASE, _RENEW
from glm5_deploy.stages.observed import _RELEASES, _VENVS


def sh(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", text, "test", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("text", ["{", "[]\n", "null", "token\n", "token soon\n{}\n", "token 9"])
def test_a_torn_lock_is_taken_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert sh(_ACQUIRE, tmp_path, "ours", 60, "{}", "").returncode == 0
    assert (tmp_path / "lock").read_text().startswith("ours ")
    assert sh(_RENEW, tmp_path, "ours", 60).returncode == 0
    assert sh(_RENEW, tmp_path, "another", 60).returncode == 76
    sh(_RELEASE, tmp_path, "ours")
    assert not (tmp_path / "lock").exists()


def test_a_held_lock_is_left(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"theirs {int(time.time()) + 50}\n{{}}\n")
    assert sh(_ACQUIRE, tmp_path, "ours", 60, "{}", "").returncode == 75


def test_what_lost_a_part_counts_as_absent(tmp_path: Path) -> None:
    names = ("unit", "environment", "secrets", "profile.json", ".done")
    for missing in ("", *names):
        folder = tmp_path / "releases" / f"without{missing}"
        folder.mkdir(parents=True)
        for name in names:
            if name != missing:
                (folder / name).write_text("x")
    assert sh(_RELEASES, tmp_path).stdout.split() == ["without"]
    for name in ("whole", "gutted"):
        (tmp_path / "venvs" / name / "bin").mkdir(parents=True)
        (tmp_path / "venvs" / name / ".done").touch()
    (tmp_path / "venvs" / "whole" / "bin" / "python").symlink_to("/bin/sh")
    (tmp_path / "venvs" / "gutted" / "bin" / "python").symlink_to("/gone/python3.11")
    assert sh(_VENVS, tmp_path).stdout.split() == ["whole"]


UV = """#!/bin/sh
for dir in "$@"; do :; done
if [ "$1" = venv ]; then exec PYTHON -m venv --without-pip "$dir"; fi
site=$(echo FOLDER/lib/python*/site-packages)
echo "x = 1" > "$site/good.py"
echo "print 1" > "$site/old.py"
echo "Installed 2 packages with what $HOME holds"
"""


def test_an_environment_is_compiled_and_says_so(tmp_path: Path) -> None:
    folder, uv, lock = tmp_path / "venvs" / "a b", tmp_path / "uv", tmp_path / "lock"
    uv.write_text(UV.replace("PYTHON", sys.executable).replace("FOLDER", f"'{folder}'"))
    uv.chmod(0o755)
    lock.write_text("good==1\nold==1\n")
    build = Path(glm5_deploy.__file__).parent / "onhost" / "build_venv.sh"
    words = ["sh", build, folder, sys.executable, uv, lock, tmp_path, "", "", folder / ".done"]
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"PROGRESS - creating {folder}",
        "PROGRESS - installing 2 packages",
        "Installed 2 packages with what /root holds",
        "PROGRESS - compiling what was installed to bytecode",
        "PROGRESS 1.0 installed",
    ]
    assert [file.name.partition(".")[0] for file in folder.rglob("*.pyc")] == ["good"]
    assert (folder / ".done").exists()
