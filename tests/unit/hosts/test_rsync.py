"""rsync: exact arguments, what its output means, and what its failures are called."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.errors import CommandFailedError, Glm5Error, UnreachableError
from glm5_deploy.hosts.askpass import askpass
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import RsyncStats
from glm5_deploy.hosts.rsync import Reading, Transfer, environment, explain

USUAL = [
    "rsync",
    "--recursive",
    "--links",
    "--copy-unsafe-links",
    "--times",
    "--perms",
    "--chmod=u=rwX,go=rX",
    "-s",
    "--partial-dir=.rsync-partial",
    "--no-inc-recursive",
    "--no-human-readable",
    "--info=progress2,stats2",
    "--outbuf=L",
]


def test_arguments(tmp_path: Path) -> None:
    folder, target = tmp_path / "a b", PurePosixPath("/t/it's")
    folder.mkdir()
    assert Transfer(folder, target).arguments("bw1", "ssh -F x") == [
        *USUAL,
        "--rsh=ssh -F x",
        "--",
        f"{folder}/",
        "bw1:/t/it's/",
    ]
    (folder / "f").touch()
    one = Transfer(folder / "f", target, delete=True, checksum=True).arguments("fd00::1", "ssh")
    assert one[len(USUAL) :] == [
        "--delete",
        "--checksum",
        "--rsh=ssh",
        "--",
        f"{folder}/f",
        "[fd00::1]:/t/it's/",
    ]
    some = Transfer(folder, target, include=("x y", "-z"))
    assert some.arguments("bw1", "ssh")[len(USUAL) :][:2] == ["--files-from=-", "--from0"]
    assert some.names() == b"x y\0-z\0"


def test_environment() -> None:
    given = {"HOME": "/h", "RSYNC_OLD_ARGS": "1", "RSYNC_RSH": "x", "LC_ALL": "de_DE"}
    assert environment(given) == {"HOME": "/h", "LC_ALL": "C"}


def test_progress_and_statistics() -> None:
    reading, seen = Reading(), []
    for line in (
        "",
        "              0   0%    0.00kB/s    0:00:00 (xfr#0, to-chk=4/4)",
        "         32,768   1%   31.25MB/s    0:00:00 (xfr#1, to-chk=2/4)",
        "      3000003 100%   23.07MB/s    0:00:00 (xfr#3, to-chk=0/4)",
        "Number of files: 4 (reg: 3, dir: 1)",
        "Number of deleted files: 2 (reg: 2)",
        "Number of regular files transferred: 3",
        "Total bytes sent: 3,000,973",
    ):
        reading.take(line, lambda text, fraction: seen.append((text, fraction)))
    assert seen == [("31.25MB/s", 0.01), ("23.07MB/s", 1.0)]
    assert reading.stats() == RsyncStats(5, 3_000_973)


@pytest.mark.parametrize(
    ("code", "said", "kind", "part"),
    [
        (255, "ssh: connect to host x port 22: timed out", UnreachableError, "connection broke"),
        (12, "rsync: connection unexpectedly closed", UnreachableError, "connection broke"),
        (12, "write failed: No space left on device (28)", CommandFailedError, "disk is full"),
        (23, "mkstemp failed: Permission denied (13)", CommandFailedError, "no permission"),
        (255, "a@b: Permission denied (publickey).", CommandFailedError, "cannot log in"),
        (255, "Host key verification failed.", CommandFailedError, "host key"),
        (1, "rsync: --info=x: unknown option", CommandFailedError, "too old"),
        (23, "link_stat failed: No such file", CommandFailedError, "status 23"),
        (23, "rsync error: some files were not transferred", CommandFailedError, "were not transf"),
        (
            11,
            "rsync error: error in file I/O (code 11) at receiver.c(380)",
            CommandFailedError,
            "full",
        ),
    ],
)
def test_failures(code: int, said: str, kind: type[Glm5Error], part: str) -> None:
    error = explain("bw1", Transfer(Path("/s"), PurePosixPath("/t")), code, said)
    assert type(error) is kind
    assert error.message.startswith("bw1: cannot copy /s to /t: ")
    assert part in error.message


def test_askpass_gives_the_secret_each_time_and_leaves_no_thread(tmp_path: Path) -> None:
    before, asked = set(threading.enumerate()), []

    def secret() -> Secret:
        asked.append(1)
        return Secret('it\'s "$x" ü')

    with askpass(tmp_path, secret) as variables:
        assert asked == []
        for _ in range(3):
            helper = [variables["SSH_ASKPASS"], "Enter passphrase for key '/k':"]
            shown = subprocess.run(helper, capture_output=True, check=True, timeout=20)
            assert shown.stdout.decode() == 'it\'s "$x" ü\n'
        held = (tmp_path / "askpass").read_text() + str(variables)
        assert "$x" not in held
    assert not set(threading.enumerate()) - before


def test_askpass_takes_one_answer_though_another_is_there(tmp_path: Path) -> None:
    """As where the server writes again before the first answer's end has been seen."""
    with askpass(tmp_path, lambda: Secret("s")) as variables:
        pass
    pipe = os.open(tmp_path / "passphrase", os.O_RDWR)
    os.write(pipe, b" s\\ \ns\n")
    shown = subprocess.run([variables["SSH_ASKPASS"]], capture_output=True, timeout=20)
    os.close(pipe)
    assert shown.stdout == b" s\\ \n"


def test_askpass_outlives_a_program_that_is_ended_while_it_asks(tmp_path: Path) -> None:
    gone = threading.Event()

    def secret() -> Secret:
        assert gone.wait(20)
        return Secret("s")

    with askpass(tmp_path, secret) as variables:
        os.close(os.open(tmp_path / "passphrase", os.O_RDONLY))
        gone.set()
        shown = subprocess.run([variables["SSH_ASKPASS"]], capture_output=True, timeout=20)
    assert shown.stdout == b"s\n"
