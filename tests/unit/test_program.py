"""The program as a process: one document on stdout whatever goes wrong, signals, encodings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PROFILE = "name: p\nmodel: {name: m}\nengine: {command: [/srv/serve]}\n"


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(CHECKOUT / "deploy")}
    return subprocess.run(
        [sys.executable, "-m", "glm5_deploy", *words],
        capture_output=True, text=True, check=False, cwd=folder, stdin=subprocess.DEVNULL,
        env={**environment, **variables},
    )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yml").write_text(PROFILE)
    (tmp_path / "inventory.yml").write_text("hosts:\n  host1: {profile: p}\n")
    (tmp_path / "bad.yml").write_text("hosts: {a: {b: 1}}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--host", "nope"), "nope"),
        (("status", "-i", "missing.yml"), "missing.yml"),
        (("smoke", "--junit", "missing/rows.xml"), "there is no folder missing"),
        (("plan", "-i", "bad.yml"), "unknown key"),
        (("up", "--bogus"), "--bogus"),
        (("up", "--forks", "many"), "--forks"),
        (("down", "--purge"), "nobody to answer"),
        (("logs", "--host", "nope"), "nope"),
        (("inventory", "check", "-i", "bad.yml"), "unknown key"),
        (("render", "--profile", "nope"), "nope"),
    ],
)
def test_errors_are_one_document_too(site: Path, words: tuple[str, ...], said: str) -> None:
    done = run(site, *words, "--json")
    assert done.returncode == 2
    assert said in done.stdout
    document = json.loads(done.stdout)
    assert document.get("ok") is False
    assert "Traceback" not in done.stderr
    plain = run(site, *words)
    assert plain.returncode == 2
    assert said in plain.stderr


def test_letters_that_a_terminal_lacks_are_no_failure(site: Path) -> None:
    (site / "bad.yml").write_text("hosts: {a: {ünï: 1}}\n")
    done = run(site, "plan", "-i", "bad.yml", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "unknown key" in done.stderr
    document = json.loads(run(site, "plan", "-i", "bad.yml", "--json", PYTHONUTF8="0",
                              LC_ALL="C", PYTHONIOENCODING="ascii").stdout)  # fmt: skip
    assert "ünï" in document["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_from_outside(site: Path, number: signal.Signals) -> None:
    """While it waits for a host that never answers; also where the signal reaches it alone."""
    connection = "{address: 127.0.0.1, port: 1, connect_attempts: 10}"
    (site / "inventory.yml").write_text(f"hosts:\n  h: {{profile: p, connection: {connection}}}\n")
    environment = {**os.environ, "HOME": str(site), "PYTHONPATH": str(CHECKOUT / "deploy")}
    process = subprocess.Popen(
        [sys.executable, "-m", "glm5_deploy", "up", "-v", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=site, env=environment,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["hosts"]["h"]["status"] == "interrupted"


def test_a_question_answered_with_no(site: Path) -> None:
    ours, theirs = os.openpty()
    os.write(ours, b"n\n")
    environment = {**os.environ, "HOME": str(site), "PYTHONPATH": str(CHECKOUT / "deploy")}
    done = subprocess.run(
        [sys.executable, "-m", "glm5_deploy", "down", "--purge"],
        stdin=theirs, capture_output=True, text=True, check=False, cwd=site, env=environment,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 130
    assert "nothing was changed" in done.stderr
