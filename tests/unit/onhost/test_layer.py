"""Environments layered on another interpreter's packages, made by the real program with uv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

PROGRAM = Path(__file__).parents[3] / "deploy" / "glm5_deploy" / "onhost" / "layer_venv.py"
PROBE = (
    "import other_package, sys; from importlib.metadata import entry_points, version;"
    "print(version('vllm'), [e.name for e in entry_points(group='vllm.general_plugins')],"
    " sys.prefix, other_package.__file__)"
)

VLLM = """\
import multiprocessing, sys

def engine():
    print('an engine', flush=True)

def main():
    if sys.argv[1:] == ['spawn']:
        process = multiprocessing.get_context('spawn').Process(target=engine)
        process.start()
        process.join()
        return process.exitcode
    print('serving', sys.argv[1:])
"""


def own_vllm(folder: Path) -> Path:
    """A folder of packages with a ``vllm``, a plugin, and a package by way of a ``.pth`` file."""
    info, plugin, linked = folder / "vllm-9.9.dist-info", folder / "p-1.dist-info", folder / "deep"
    for each in (info, plugin, linked):
        each.mkdir(parents=True)
    (folder / "vllm.py").write_text(VLLM)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm:main\n")
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: p\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\nplugin = p:register\n")
    (linked / "other_package.py").write_text("")
    (folder / "linked.pth").write_text(f"{linked}\n")
    return folder


def layer(folder: Path, *sites: Path, marker: Path | str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(PROGRAM), str(folder), find_uv_bin(), str(marker)]
    return subprocess.run(
        [*words, *map(str, sites)], capture_output=True, text=True, check=False, timeout=120
    )


def said(*words: str | Path) -> str:
    """Without any variable, as a worker that clears its environment would start."""
    done = subprocess.run(
        ["env", "-i", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_of_the_base_is_seen_and_its_command_is_there(tmp_path: Path) -> None:
    site = own_vllm(tmp_path / "it's a site")
    venv, marker = tmp_path / "ann's files" / "venvs" / "abc", tmp_path / "done"
    done = layer(venv, site, marker=marker)
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    found = said(venv / "bin" / "python", "-c", PROBE)
    assert found.startswith(f"9.9 ['plugin'] {venv} {site}/deep/")
    # What the base interpreter has of its own comes after it.
    assert said(venv / "bin" / "python", "-c", "import pytest; print(pytest.__file__)")
    served = said(venv / "bin" / "vllm", "serve", "a model")
    assert served == "serving ['serve', 'a model']\n"


def test_its_command_can_spawn_engines(tmp_path: Path) -> None:
    """As vLLM does on a GPU: each imports the command's script again, and must not run it."""
    site, venv = own_vllm(tmp_path / "site"), tmp_path / "venvs" / "abc"
    assert layer(venv, site).returncode == 0
    assert said(venv / "bin" / "vllm", "spawn") == "an engine\n"


def test_a_second_time_begins_anew(tmp_path: Path) -> None:
    site, venv = own_vllm(tmp_path / "site"), tmp_path / "venvs" / "abc"
    assert layer(venv, site).returncode == 0
    (venv / "leftover").write_text("")
    assert layer(venv, site).returncode == 0
    assert not (venv / "leftover").exists()


@pytest.mark.parametrize(
    ("folder", "site", "message"),
    [
        ("venvs/abc", "absent", "no such folder"),
        ("venvs/abc", "empty", "no vLLM is installed in"),
        ("elsewhere", "site", "not a folder of environments"),
    ],
)
def test_what_is_refused(tmp_path: Path, folder: str, site: str, message: str) -> None:
    own_vllm(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    done = layer(tmp_path / folder, tmp_path / site)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / folder / ".locked").exists()
