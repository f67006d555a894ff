"""Smaller parts: lines, retries, gathering, the fake host, opening a target."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.config.models import (
    Become,
    Connection,
    HostSettings,
    ModelFiles,
    Profile,
    Target,
)
from glm5_deploy.errors import CommandFailedError, SudoRefusedError, UnreachableError
from glm5_deploy.hosts.command import Command, command, script
from glm5_deploy.hosts.connect import open_host
from glm5_deploy.hosts.facts.fact import Fact, gather, runner, split
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.hosts.lines import LONGEST, LineSplitter
from glm5_deploy.hosts.retry import retrying
from glm5_deploy.hosts.ssh import SshHost
from hypothesis import given
from hypothesis import strategies as st


@given(st.text(st.characters(exclude_categories=["Cs"])), st.data())
def test_lines_do_not_depend_on_how_bytes_arrive(text: str, data: st.DataObject) -> None:
    content, splitter, lines = text.encode(), LineSplitter(), []
    while content:
        size = data.draw(st.integers(1, len(content)))
        lines += splitter.feed(content[:size])
        content = content[size:]
    lines += splitter.rest()
    wanted = text.split("\n")
    if not wanted[-1]:
        wanted.pop()
    ended = text.count("\n")
    assert lines == [
        line.removesuffix("\r") if number < ended else line for number, line in enumerate(wanted)
    ]


def test_a_line_without_end_is_cut() -> None:
    splitter = LineSplitter()
    assert [len(line) for line in splitter.feed(b"x" * (LONGEST * 2 + 5))] == [LONGEST, LONGEST]
    assert list(splitter.rest()) == ["xxxxx"]


def attempts(errors: list[Exception], limit: int) -> tuple[int, Exception | None]:
    """How often it was tried, and with what it ended."""
    left, tried = list(errors), []

    def action() -> int:
        tried.append(1)
        if left:
            raise left.pop(0)
        return 1

    try:
        retrying(
            action,
            attempts=limit,
            transient=lambda error: isinstance(error, UnreachableError),
            cancelled=threading.Event(),
            wait=0,
        )
    except Exception as error:
        return len(tried), error
    return len(tried), None


def test_retries() -> None:
    lost, wrong = UnreachableError("x"), CommandFailedError("y")
    assert attempts([], 3) == (1, None)
    assert attempts([lost, lost], 3) == (3, None)
    assert attempts([lost, lost, lost], 3) == (3, lost)
    assert attempts([lost, wrong, lost], 3) == (2, wrong)


def test_a_cancelled_retry_does_not_wait() -> None:
    cancelled = threading.Event()
    cancelled.set()

    def fail() -> int:
        raise UnreachableError("x")

    with pytest.raises(UnreachableError):
        retrying(fail, attempts=10, transient=lambda _: True, cancelled=cancelled, wait=1_000_000)


WORDS = [
    Fact("words", script('printf "%s\\n" "$@"', "a 'b'", "$HOME"), lambda output: output.stdout),
    Fact("fails", script("echo no >&2; exit 9"), lambda output: (output.returncode, output.stderr)),
    Fact("silent", command("true"), lambda output: output),
]


def test_the_runner_works_in_a_plain_shell() -> None:
    done = subprocess.run(
        ["sh", "-c", runner("MARK", WORDS).shell()], capture_output=True, text=True, check=True
    )
    host = FakeHost(expected=[Expected("sh", stdout=done.stdout, times=None)])
    outputs = split(done.stdout, "MARK")
    assert [output.returncode for output in outputs] == [0, 9, 0]
    assert outputs[0].stdout == "a 'b'\n$HOME\n"
    assert outputs[1].stderr == "no\n"
    # another mark: nothing is recognised, and that is an error, not an empty host
    with pytest.raises(CommandFailedError, match="0 of 3 facts"):
        gather(host, WORDS)


def test_cut_off_output_is_not_taken_for_facts() -> None:
    assert split("\nM out\nabc", "M") == []
    assert len(split("\nM out\na\nM err 0\n\nM out\nb", "M")) == 1


def test_refused_sudo_is_a_fact_and_not_a_failure() -> None:
    host = FakeHost(expected=[Expected("sh", raises=SudoRefusedError("no")), Expected("sh")])
    assert gather(host, []) == {}
    assert [call.sudo for call in host.calls] == [True, False]


def test_two_facts_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        gather(FakeHost(), [WORDS[0], WORDS[0]])


def test_the_fake_host_takes_only_what_is_expected() -> None:
    listing = command("ls", "-l")
    host = FakeHost(
        expected=[
            Expected(listing, stdout="x\ny\n"),
            Expected("id", returncode=3, stderr="no"),
            Expected(lambda wanted: wanted.argv[0] == "uname", times=None),
        ]
    )
    with host.stream(listing) as lines:
        assert [line.text for line in lines] == ["x", "y"]
    with pytest.raises(CommandFailedError, match="status 3: no"):
        host.run(command("id"), sudo=True, stdin=b"in")
    for _ in range(3):
        assert host.run(command("uname")).ok
    with pytest.raises(AssertionError, match="nobody expects ls -l"):
        host.run(listing)
    host.put(b"a", PurePosixPath("/x"), mode=0o600)
    assert host.get(PurePosixPath("/x")) == b"a"
    with pytest.raises(CommandFailedError, match="/y"):
        host.get(PurePosixPath("/y"))
    with pytest.raises(ConnectionRefusedError):
        host.dial("127.0.0.1", 1)
    assert host.calls[1].content == b"in"
    assert host.commands[0] == listing
    host.assert_all_used()
    host.expected.append(Expected("never"))
    with pytest.raises(AssertionError, match="never run: never"):
        host.assert_all_used()


def test_a_command_is_masked_on_one_line() -> None:
    assert Command(("sh", "-c", "a  b")).masked() == "sh -c 'a b'"
    assert script("\na\nb $1\n", "it's", "x").masked() == """sh -c … 'it'"'"'s' x"""
    assert Command(("sh", "-c", "a\nb"), env=(("A", "1"),)).masked() == "env A=1 sh -c 'a b'"
    assert len(command("echo", "x" * 500).masked()) == 200


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that neither takes nor refuses connections: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_close_ends_an_attempt_that_waits_for_an_answer(silent_port: int) -> None:
    errors: list[Exception] = []
    settings = Connection(
        address="127.0.0.1", port=silent_port, ssh_config=Path("/dev/null"), connect_timeout=600
    )
    host = SshHost("bw1", settings, Become())

    def run() -> None:
        try:
            host.run(command("true"))
        except UnreachableError as error:
            errors.append(error)

    caller = threading.Thread(target=run, daemon=True)
    caller.start()
    caller.join(timeout=1)
    assert caller.is_alive()
    host.close()
    caller.join(timeout=30)
    assert not caller.is_alive()
    assert errors


def test_opening_a_target_dials_nothing_and_resolves_no_secret(tmp_path: Path) -> None:
    settings = HostSettings(
        connection=Connection(address="10.0.0.1", user="al", ssh_config=Path("/dev/null")),
        become=Become(password="${env:GLM5_NO_SUCH_VARIABLE}"),
    )
    profile = Profile(name="p", model=ModelFiles(name="m"))
    host = open_host(Target(name="bw1", settings=settings, profile=profile), tmp_path)
    assert (host.name, host.login_user, host.round_trips) == ("bw1", "al", 0)
    host.close()
    host.close()
