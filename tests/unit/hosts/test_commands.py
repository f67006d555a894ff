"""Commands through a real local shell, and the wrapping that hosts get."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from glm5_deploy.hosts.become import Handshake, Opening, become, for_any_shell, guarded, refusal
from glm5_deploy.hosts.command import Command, Secret, command, script
from hypothesis import given, settings
from hypothesis import strategies as st

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def sh(wanted: Command, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", wanted.shell()], input=stdin, capture_output=True, check=False
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=20))
def test_any_text_survives_a_shell(values: list[str]) -> None:
    done = sh(command("printf", r"%s\0", *values))
    assert done.stdout.decode() == "".join(f"{value}\0" for value in values)


@settings(max_examples=30, deadline=None)
@given(st.lists(texts, min_size=1, max_size=5), texts)
def test_any_text_survives_the_wrapping_for_a_host(values: list[str], value: str) -> None:
    inner = command("printf", r"%s\0", *values, env={"X": value})
    handshake = Handshake.draw(password=False)
    wrapped = guarded(inner, limit=30, lifeline=False, start=handshake.start)
    done = sh(wrapped)
    assert done.stdout.decode() == "".join(f"{value}\0" for value in values)
    assert done.stderr.decode() == f"{handshake.start}\n"


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "zsh", "fish", "tcsh"])
@settings(max_examples=25, deadline=None)
@given(values=st.lists(texts, min_size=1, max_size=5))
def test_any_text_survives_any_login_shell(shell: str, values: list[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    wrapped = guarded(command("printf", r"%s\0", *values), limit=30, lifeline=False)
    done = subprocess.run(
        [shell, "-c", for_any_shell(wrapped)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode() == "".join(f"{value}\0" for value in values), done.stderr


def test_a_lifeline_that_ends_takes_the_command_along() -> None:
    """Standard input is at its end from the start, as when the connection has just broken."""
    done = sh(guarded(command("sleep", "60"), limit=0, lifeline=True))
    assert done.returncode != 0


def test_input_reaches_the_command_and_its_status_comes_back() -> None:
    wrapped = guarded(script("cat; exit 5"), limit=10, lifeline=False)
    done = sh(wrapped, b"a\nb")
    assert (done.stdout, done.returncode) == (b"a\nb", 5)
    assert sh(guarded(script("kill -15 $$"), limit=10, lifeline=False)).returncode == 143
    assert sh(guarded(script("sleep 60"), limit=0.2, lifeline=False)).returncode == 124


def test_no_secret_and_no_nul_in_arguments() -> None:
    with pytest.raises(ValueError, match="standard input"):
        command("echo", Secret("x"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NUL"):
        command("echo", "a\0b")
    assert str(Secret("x")) == f"{Secret('x')}" == "********"
    assert "hidden" not in repr(Secret("hidden"))


def test_sudo_gets_the_prompt_only_where_there_is_a_password() -> None:
    asked, free = Handshake.draw(password=True), Handshake.draw(password=False)
    assert become(command("id"), "root", asked).argv[4:] == ("root", asked.prompt, "id")
    assert become(command("id"), "www", free).argv[4:] == ("www", "", "id")
    assert Handshake.draw(password=True) != asked


MARKS = Handshake("START", "ASK:")


@pytest.mark.parametrize(
    ("pieces", "steps", "output"),
    [
        ([b"START\n"], ["started"], b""),
        ([b"START\nhello"], ["started"], b"hello"),
        ([b"STA", b"RT", b"\nerr"], [None, None, "started"], b"err"),
        ([b"lecture\n", b"ASK:", b"START\n"], [None, "password", "started"], b""),
        ([b"lecture AS", b"K:", b"\nSTART\nx"], [None, "password", "started"], b"x"),
        ([b"ASK:", b"Sorry, try again.\nASK:"], ["password", "wrong"], None),
    ],
)
def test_the_dialogue_with_sudo(
    pieces: list[bytes], steps: list[str | None], output: bytes | None
) -> None:
    opening = Opening(MARKS)
    assert [opening.feed(piece) for piece in pieces] == steps
    assert opening.started is (output is not None)
    if output is not None:
        assert opening.said == output


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("sudo: a password is required", "wants a password", "become.password"),
        ("sudo: sorry, you must have a tty to run sudo", "terminal", "requiretty"),
        ("al is not in the sudoers file.", "may not use sudo", "visudo"),
        ("Sorry, user al is not allowed to execute '/bin/sh' as x on h.", "may not", "visudo"),
        ("sudo: not installed", "not installed", "root"),
        ("sudo: unknown user: x", "no such user", None),
        ("sudo: 1 incorrect password attempt", "rejects the password", "become.password"),
        ("sudo: /etc/sudoers is world writable", "world writable", None),
        ("", "without a word", None),
    ],
)
def test_refusals(said: str, message: str, hint: str | None) -> None:
    error = refusal("h1", "al", "root", Opening(MARKS, said.encode()), wrong=False)
    assert error.message.startswith("h1: al cannot become root: ")
    assert message in error.message
    assert (hint is None) == (error.hint is None)
    assert hint is None or hint in (error.hint or "")
