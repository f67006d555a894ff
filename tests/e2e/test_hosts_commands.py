"""Commands, streams and files on a real host."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

import pytest
from glm5_deploy.demo.bed import Bed
from glm5_deploy.errors import CommandFailedError, CommandTimeoutError, UnreachableError
from glm5_deploy.hosts.command import command, script
from glm5_deploy.hosts.host import Line
from glm5_deploy.hosts.ssh import SshHost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.hosts_support import eventually, opened, processes


@pytest.fixture(scope="module")
def host(bed: Bed) -> Iterator[SshHost]:
    with opened(bed) as host:
        yield host


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(texts, min_size=1, max_size=60))
def test_any_text_survives_a_real_remote_shell(host: SshHost, values: list[str]) -> None:
    result = host.run(command("printf", r"%s\0", *values))
    assert result.stdout == "".join(f"{value}\0" for value in values)


def test_environment_and_folder(host: SshHost) -> None:
    shown = script('printf "%s|%s|%s" "$A" "$PWD" "$LC_ALL"')
    wrapped = command(*shown.argv, env={"A": "has space\n'\"$%"}, cwd="/usr")
    assert host.run(wrapped).stdout == "has space\n'\"$%|/usr|C"


def test_status_signal_and_both_outputs(host: SshHost) -> None:
    result = host.run(script("echo out; echo err >&2; exit 7"), check=False)
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert host.run(script("kill -9 $$"), check=False).returncode == 137
    with pytest.raises(CommandFailedError, match=r"node1: .*ended with status 3: it is broken"):
        host.run(script("echo it is broken >&2; exit 3"))
    with pytest.raises(CommandFailedError, match="status 127"):
        host.run(command("no-such-program"))


def test_megabytes_on_all_three_streams_at_once(host: SshHost) -> None:
    content = os.urandom(4_000_000).hex().encode()
    result = host.run(script("tee /dev/stderr"), stdin=content)
    assert result.stdout.encode() == content
    assert result.stderr.encode() == content


def test_input_that_nobody_reads_does_no_harm(host: SshHost) -> None:
    assert host.run(script("exit 0"), stdin=b"x" * 8_000_000).ok


def test_a_daemon_that_keeps_the_output_open_does_not_hold_us(bed: Bed, host: SshHost) -> None:
    assert host.run(script("setsid sleep 613 & echo done"), timeout=60).stdout == "done\n"
    assert processes(bed.hosts["node1"], "sleep 613")
    bed.hosts["node1"].exec(["pkill", "-f", "sleep 613"])


@pytest.mark.parametrize("stdin", [None, b"x"])
def test_a_timeout_ends_the_whole_remote_command(
    bed: Bed, host: SshHost, stdin: bytes | None
) -> None:
    with pytest.raises(CommandTimeoutError, match="still running after 1 s"):
        host.run(script("sleep 611 & sleep 611"), timeout=1, stdin=stdin)
    assert eventually(lambda: not processes(bed.hosts["node1"], "sleep 611"))


def test_a_command_that_ignores_the_end_is_killed(bed: Bed, host: SshHost) -> None:
    with pytest.raises(CommandTimeoutError):
        host.run(script("trap '' TERM; while :; do sleep 0.3; : 612; done"), timeout=1)
    assert eventually(lambda: not processes(bed.hosts["node1"], ": 612"))


def test_leaving_a_stream_ends_the_remote_command(bed: Bed, host: SshHost) -> None:
    following = script("echo first; echo warn >&2; tail -f /dev/null & sleep 614")
    with host.stream(following) as lines:
        found = {next(lines), next(lines)}
        assert found == {Line("stdout", "first"), Line("stderr", "warn")}
        assert processes(bed.hosts["node1"], "sleep 614")
    assert eventually(lambda: not processes(bed.hosts["node1"], "sleep 614"))
    assert eventually(lambda: not processes(bed.hosts["node1"], "tail -f /dev/null"))


def test_ctrl_c_ends_a_stream_and_a_call_at_once(bed: Bed, host: SshHost) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted_stream(host)
    assert eventually(lambda: not processes(bed.hosts["node1"], "sleep 616"))
    threading.Timer(0.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        host.run(command("sleep", "617"))
    assert eventually(lambda: not processes(bed.hosts["node1"], "sleep 617"))
    assert host.run(command("true")).ok


def _interrupted_stream(host: SshHost) -> None:
    with host.stream(script("echo go; sleep 616")) as lines:
        assert next(lines).text == "go"
        threading.Timer(0.2, _thread.interrupt_main).start()
        next(lines)


def test_a_stream_ends_with_its_command_and_yields_the_last_line(host: SshHost) -> None:
    with host.stream(script(r"printf 'a\r\nb\n\nlast'")) as lines:
        assert [line.text for line in lines] == ["a", "b", "", "last"]


def test_closing_from_another_thread_ends_a_call_at_once(bed: Bed) -> None:
    with opened(bed) as host:
        assert host.run(command("true")).ok
        closer = threading.Timer(0.3, host.close)
        closer.start()
        with pytest.raises(UnreachableError, match="closed"):
            host.run(command("sleep", "615"), timeout=None)
        assert eventually(lambda: not processes(bed.hosts["node1"], "sleep 615"))
        with pytest.raises(UnreachableError, match="closed"):
            host.run(command("true"))


@pytest.mark.parametrize("size", [0, 1, 50_000_000])
def test_put_and_get(host: SshHost, size: int) -> None:
    path = PurePosixPath('/tmp/hosts test/it\'s "x" $HOME/file')
    content = os.urandom(size)
    before = host.round_trips
    host.put(content, path, mode=0o640, owner="nobody:daemon")
    assert host.round_trips - before == 1
    assert host.get(path) == content
    shown = host.run(command("stat", "-c", "%a %U %G", path)).stdout
    assert shown == "640 nobody daemon\n"
    assert host.run(command("ls", "-A", path.parent)).stdout == "file\n"


def test_a_broken_upload_leaves_the_old_file_and_nothing_else(bed: Bed, host: SshHost) -> None:
    path = PurePosixPath("/tmp/hosts-atomic/file")
    host.put(b"old", path)
    with opened(bed) as other:
        other.run(command("true"))
        closer = threading.Timer(0.05, other.close)
        closer.start()
        with pytest.raises(UnreachableError):
            _put_again_and_again(other, path)
    content = host.get(path)
    assert content in (b"old", b"n" * 50_000_000)
    assert eventually(lambda: host.run(command("ls", "-A", path.parent)).stdout == "file\n")


def _put_again_and_again(host: SshHost, path: PurePosixPath) -> None:
    for _ in range(50):
        host.put(b"n" * 50_000_000, path)


def test_hosts_work_beside_each_other(bed: Bed) -> None:
    """Each in a thread of its own, one of them cut off: the others do not notice."""
    bed.hosts["node3"].cut()

    def call(name: str) -> str:
        settings = {"connect_timeout": 1, "connect_attempts": 1}
        with opened(bed, name, **settings) as host:
            try:
                seen = {host.run(command("uname", "-n")).stdout for _ in range(20)}
            except UnreachableError:
                return "unreachable"
            return " ".join(seen).strip()

    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(call, [f"node{number % 3 + 1}" for number in range(8)]))
    finally:
        bed.hosts["node3"].restore()
    assert found == [
        "unreachable" if number % 3 == 2 else f"node{number % 3 + 1}" for number in range(8)
    ]


def test_put_says_why_not(host: SshHost) -> None:
    with pytest.raises(CommandFailedError, match=r"cannot write /proc/x/y: .*proc"):
        host.put(b"x", PurePosixPath("/proc/x/y"))
    host.run(command("mkdir", "-p", "/tmp/hosts-folder"))
    with pytest.raises(CommandFailedError, match="directory"):
        host.put(b"x", PurePosixPath("/tmp/hosts-folder"))
    with pytest.raises(CommandFailedError, match="No such file"):
        host.get(PurePosixPath("/nowhere"))


def test_a_full_disk_is_named_and_leaves_the_old_file(bed: Bed, host: SshHost) -> None:
    bed.hosts["node1"].tmpfs("/tmp/hosts-small", "1m")
    path = PurePosixPath("/tmp/hosts-small/file")
    try:
        host.put(b"old", path)
        with pytest.raises(CommandFailedError, match="No space left"):
            host.put(b"x" * 3_000_000, path)
        assert host.get(path) == b"old"
        assert host.run(command("ls", "-A", path.parent)).stdout == "file\n"
    finally:
        bed.hosts["node1"].exec(["umount", "/tmp/hosts-small"])


def test_dial_reaches_the_host_and_refusal_is_told(bed: Bed, host: SshHost) -> None:
    stream = host.dial(bed.hosts["node1"].address, 22)
    stream.settimeout(10)
    assert stream.recv(8) == b"SSH-2.0-"
    stream.close()
    with pytest.raises(ConnectionRefusedError, match=r"nothing listens on 127\.0\.0\.1 port 9"):
        host.dial("127.0.0.1", 9)
