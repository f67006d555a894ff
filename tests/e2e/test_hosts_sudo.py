"""Becoming root and other users on a real host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.errors import CommandFailedError, CommandTimeoutError, SudoRefusedError
from glm5_deploy.hosts.command import command, script

from tests.e2e.hosts_support import NASTY, eventually, opened, processes

WHO = script('printf "%s:%s:" "$(id -un)" "$HOME"; cat')


@pytest.fixture(scope="module")
def node(bed: Bed) -> Iterator[BedHost]:
    """Users with all kinds of rights to sudo."""
    host = bed.hosts["node1"]
    host.add_user("hosts-free", "nopasswd")
    host.add_user("hosts-asked", "password", NASTY)
    host.add_user("hosts-none", None, "simple")
    host.add_user("hosts-tty", "nopasswd")
    host.exec(["tee", "/etc/sudoers.d/tty"], input="Defaults:hosts-tty requiretty\n")
    yield host
    host.exec(["rm", "/etc/sudoers.d/tty"])
    for name in ("hosts-free", "hosts-asked", "hosts-none", "hosts-tty"):
        host.remove_user(name)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("stdin", [None, b"line\n2 \x27\n"])
@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("root", None),
        ("root", "unused"),
        ("hosts-free", None),
        ("hosts-free", "unused"),
        ("hosts-asked", NASTY),
    ],
)
def test_sudo_works_and_the_password_is_in_no_ones_input(
    bed: Bed, user: str, password: str | None, stdin: bytes | None
) -> None:
    text = (stdin or b"").decode()
    with opened(bed, user=user, password=password) as host:
        assert host.run(WHO, sudo=True, stdin=stdin).stdout == f"root:/root:{text}"
        other = host.run(WHO, user="hosts-none", stdin=stdin)
        assert other.stdout == f"hosts-none:/home/hosts-none:{text}"
        assert host.run(script("exit 1"), sudo=True, check=False).returncode == 1
        with pytest.raises(CommandFailedError, match="status 1"):
            host.run(script("exit 1"), sudo=True)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("user", "password", "message", "hint"),
    [
        ("hosts-asked", "wrong", "rejects the password", "become.password"),
        ("hosts-asked", None, "wants a password and none is given", "become.password"),
        ("hosts-none", "simple", "may not use sudo", "sudoers"),
        ("hosts-none", "wrong", "rejects the password", "become.password"),
        ("hosts-tty", None, "wants a terminal", "requiretty"),
    ],
)
def test_refusals_are_told_apart(
    bed: Bed, user: str, password: str | None, message: str, hint: str
) -> None:
    with opened(bed, user=user, password=password) as host:
        with pytest.raises(SudoRefusedError, match=message) as caught:
            host.run(command("id"), sudo=True, stdin=b"payload\n" * 3)
        assert hint in (caught.value.hint or "")
        assert "payload" not in caught.value.message
        assert password is None or password not in caught.value.message


def test_a_wrong_password_is_tried_once(bed: Bed, node: BedHost) -> None:
    node.exec(["journalctl", "--rotate"])
    node.exec(["journalctl", "--vacuum-time=1s"])
    with opened(bed, user="hosts-asked", password="wrong") as host, pytest.raises(SudoRefusedError):
        host.run(command("id"), sudo=True, stdin=b"a\nb\nc\n")
    failures = node.exec(["journalctl", "--no-pager", "-t", "sudo"]).stdout
    assert failures.count("authentication failure;") == 1, failures


def test_sudo_missing_is_told(bed: Bed, node: BedHost) -> None:
    node.exec(["mv", "/usr/bin/sudo", "/usr/bin/sudo.away"])
    try:
        with (
            opened(bed, user="hosts-free") as host,
            pytest.raises(SudoRefusedError, match="not installed"),
        ):
            host.run(command("id"), sudo=True)
        with opened(bed) as host:
            assert host.run(WHO, sudo=True).stdout == "root:/root:"
            assert host.run(WHO, user="hosts-none").stdout.startswith("hosts-none:")
    finally:
        node.exec(["mv", "/usr/bin/sudo.away", "/usr/bin/sudo"])


@pytest.mark.usefixtures("node")
def test_an_unknown_user_is_told(bed: Bed) -> None:
    for user in ("root", "hosts-free"):
        with opened(bed, user=user) as host, pytest.raises(SudoRefusedError, match="no such user"):
            host.run(command("id"), user="hosts-nobody")


@pytest.mark.usefixtures("node")
def test_files_as_root_with_a_password(bed: Bed) -> None:
    path = PurePosixPath("/root/hosts/x")
    with opened(bed, user="hosts-asked", password=NASTY) as host:
        content = b"binary\0\xff" * 1_000_000
        host.put(content, path, mode=0o600)
        assert host.get(path) == content
        with pytest.raises(CommandFailedError, match="Permission denied"):
            host.get(path, sudo=False)


def test_streams_and_timeouts_of_root_commands_leave_nothing(bed: Bed, node: BedHost) -> None:
    with opened(bed, user="hosts-asked", password=NASTY) as host:
        with host.stream(script("echo go; sleep 621"), sudo=True) as lines:
            assert next(lines).text == "go"
            assert processes(node, "sleep 621")
        assert eventually(lambda: not processes(node, "sleep 621"))
        with pytest.raises(CommandTimeoutError):
            host.run(command("sleep", "622"), sudo=True, timeout=1)
        assert eventually(lambda: not processes(node, "sleep 622"))


def test_secrets_show_nowhere_while_they_are_used(bed: Bed, node: BedHost) -> None:
    """The whole environment and argument list of every process of the host."""
    everything = 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr "\\0" "\\n"'
    with opened(bed, user="hosts-asked", password=NASTY) as host:
        call = threading.Thread(
            target=host.run,
            args=(script("cat >/dev/null; sleep 2"),),
            kwargs={"sudo": True, "stdin": b"the-payload-secret"},
        )
        call.start()
        assert eventually(lambda: bool(processes(node, "sleep 2")))
        seen = node.exec(["sh", "-c", everything]).stdout
        call.join()
    assert "sleep" in seen
    assert NASTY not in seen
    assert "the-payload-secret" not in seen
    journal = node.exec(["journalctl", "--no-pager"]).stdout
    assert NASTY not in journal
    assert "the-payload-secret" not in journal
