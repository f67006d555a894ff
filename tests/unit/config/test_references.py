"""Secrets are found late, whole, and never shown."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from glm5_deploy.config import references
from glm5_deploy.config.references import resolve_secret
from glm5_deploy.errors import UsageError

AWKWARD = "p;a 'b$\"%`\\ é"


def _file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def _program(folder: Path, source: str) -> str:
    """A reference to a Python program with this source."""
    file = _file(folder / "program.py", source.encode())
    return f"${{exec:{shlex.join([sys.executable, str(file), 'x y', '$HOME'])}}}"


def test_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", AWKWARD)
    assert resolve_secret("${env:SOME_KEY}", tmp_path).value == AWKWARD


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b"abc\n\n", "abc\n"),
        (b" abc \n", " abc "),
        (AWKWARD.encode(), AWKWARD),
    ],
)
def test_a_file_loses_one_newline_at_most(tmp_path: Path, content: bytes, value: str) -> None:
    _file(tmp_path / "key", content)
    assert resolve_secret("${file:key}", tmp_path).value == value


def test_a_file_elsewhere(tmp_path: Path) -> None:
    file = _file(tmp_path / "a key", b"abc")
    assert resolve_secret(f"${{file:{file}}}", Path("/nowhere")).value == "abc"


def test_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _file(tmp_path / "key", b"abc")
    assert resolve_secret("${file:~/key}", Path("/nowhere")).value == "abc"


def test_a_file_of_the_group_will_do(tmp_path: Path) -> None:
    _file(tmp_path / "key", b"abc", 0o640)
    assert resolve_secret("${file:key}", tmp_path).value == "abc"


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o601])
def test_a_file_that_everybody_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = _file(tmp_path / "the key", b"abc", mode)
    with pytest.raises(UsageError) as caught:
        resolve_secret("${file:the key}", tmp_path)
    assert caught.value.message == (
        f"{file} holds a secret and everybody on this machine may use it"
    )
    assert caught.value.hint == f"chmod 600 '{file}'"


def test_a_command_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    reference = _program(tmp_path, "import sys; print('|'.join(sys.argv[1:]))")
    assert resolve_secret(reference, tmp_path).value == "x y|$HOME"


def test_a_command_runs_in_the_folder(tmp_path: Path) -> None:
    reference = _program(tmp_path, "import os; print(os.getcwd(), end='')")
    assert resolve_secret(reference, tmp_path).value == str(tmp_path)


def test_a_failed_command_shows_its_errors_and_not_its_output(tmp_path: Path) -> None:
    source = "import sys; print('half a secret'); print('locked', file=sys.stderr); sys.exit(3)"
    with pytest.raises(UsageError) as caught:
        resolve_secret(_program(tmp_path, source), tmp_path)
    assert "ended with status 3" in caught.value.message
    assert caught.value.hint == "it said: locked"
    assert "half a secret" not in caught.value.message


def test_a_command_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "EXEC_TIMEOUT", 0.2)
    with pytest.raises(UsageError, match="gave no secret within"):
        resolve_secret(_program(tmp_path, "import time; time.sleep(60)"), tmp_path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:NOT_SET_ANYWHERE}", "the environment variable NOT_SET_ANYWHERE is not set"),
        ("${env:EMPTY}", "${env:EMPTY} is empty"),
        ("${file:empty}", "${file:empty} is empty"),
        ("${exec:true}", "${exec:true} is empty"),
        ("${exec:no-such-program-here}", "`no-such-program-here` cannot be run: no such file or"),
        ("${exec:'}", "${exec:'} does not parse: no closing quotation"),
        ("${exec: }", "${exec:…} names no command"),
        ("${file:missing}", "cannot be read: no such file or directory"),
        ("${file:.}", "cannot be read: is a directory"),
        ("${file:latin-1}", "latin-1 is not UTF-8 text"),
    ],
)
def test_nothing_behind_it(
    reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    _file(tmp_path / "empty", b"\n")
    _file(tmp_path / "latin-1", b"M\xfc")
    with pytest.raises(UsageError) as caught:
        resolve_secret(reference, tmp_path)
    assert message in caught.value.message


@pytest.mark.parametrize("text", ["hunter2", "${hunter2}", "${vault:hunter2}", "$env:hunter2", ""])
def test_a_literal_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_secret(text, tmp_path)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


def test_a_secret_does_not_show_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", "hunter2")
    secret = resolve_secret("${env:SOME_KEY}", tmp_path)
    assert "hunter2" not in f"{secret} {secret!r} {secret:>20}"
