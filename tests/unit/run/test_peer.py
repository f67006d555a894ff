"""Transfers between hosts: addresses, and what is written into authorized_keys and taken back."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.errors import CommandFailedError, Glm5Error, UnreachableError
from glm5_deploy.hosts.command import Command, script
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.hosts.peer import Peer
from glm5_deploy.run.peer import (
    _GRANT,
    _LOOK,
    _REVOKE,
    _ROOM,
    _address,
    _config,
    _explained,
    _look,
)
from glm5_deploy.stages.change import Copy

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample"
OLD = "ssh-rsa AAAA ann@desk"
PEER = Peer(FakeHost("bw0", "deploy"), "192.0.2.1", 2222, PurePosixPath("/opt/glm5"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ("192.0.2.1", 2222)),
        ("10.0.0.1", ("10.0.0.1", 22)),
        ("10.0.0.1:2200", ("10.0.0.1", 2200)),
        ("storage.example", ("storage.example", 22)),
        ("storage.example:2200", ("storage.example", 2200)),
        ("fd00::1", ("fd00::1", 22)),
        ("[fd00::1]", ("fd00::1", 22)),
        ("[fd00::1]:2200", ("fd00::1", 2200)),
    ],
)
def test_addresses(given: str | None, expected: tuple[str, int]) -> None:
    assert _address(given, PEER) == expected


def test_the_client_trusts_one_host_key_and_offers_one_key() -> None:
    text = _config(PurePosixPath("/opt/a b"), "192.0.2.1", 22, "deploy")
    assert 'IdentityFile "/opt/a b/key"' in text
    assert "StrictHostKeyChecking yes" in text
    assert "IdentityAgent none" in text
    assert "BatchMode yes" in text


def test_a_source_that_is_away_is_named() -> None:
    away = UnreachableError("cannot reach deploy@192.0.2.1", "is it up?")
    host = FakeHost("bw0", expected=[Expected("sh", raises=away)])
    step = Copy(
        "bw0", "glm-5", None, None, PurePosixPath("/m"), "u", 9, None, None, False,
        PurePosixPath("/p"), PurePosixPath("/d"), PurePosixPath("/s"), PurePosixPath("/f"),
    )  # fmt: skip
    peer = Peer(host, "192.0.2.1", 22, PurePosixPath("/opt/glm5"))
    with pytest.raises(
        UnreachableError, match="bw0, which the model is to come from: cannot"
    ) as it:
        _look(peer, step)
    assert it.value.hint == "is it up?"


def run(command: Command, home: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["sh", "-c", command.shell()], env={**os.environ, "HOME": str(home)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def granted(home: Path, mark: str = "glm5-copy-abc", folder: str = "/srv/a b") -> None:
    run(script(_GRANT, folder, KEY, mark, 3600), home)


@pytest.mark.parametrize("before", [None, "", f"{OLD}\n", OLD, f"# only a comment\n{OLD}\n\n"])
def test_a_grant_is_taken_back_without_a_trace(tmp_path: Path, before: str | None) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    if before is not None:
        keys.parent.mkdir()
        keys.write_text(before)
        keys.chmod(0o640)
    granted(tmp_path)
    granted(tmp_path)
    lines = keys.read_text().splitlines()
    ours = [line for line in lines if KEY in line]
    assert len(ours) == 1
    pattern = r'restrict,expiry-time="\d{12}",command="rsync --server --daemon --config=.*" ssh-'
    assert re.match(pattern, ours[0])
    assert [line for line in lines if line != ours[0]] == (before or "").splitlines()
    conf = (tmp_path / ".ssh" / "glm5-copy-abc.conf").read_text()
    assert "read only = yes" in conf
    assert "path = /srv/a b\n" in conf
    run(script(_REVOKE, "glm5-copy-abc"), tmp_path)
    assert keys.read_text().splitlines() == (before or "").splitlines()
    assert {path.name for path in keys.parent.iterdir()} == {"authorized_keys"}
    if before is not None:
        assert keys.stat().st_mode & 0o777 == 0o640
    run(script(_REVOKE, "glm5-copy-abc"), tmp_path)


def test_grants_of_several_hosts_at_once_do_not_lose_each_other(tmp_path: Path) -> None:
    marks = [f"glm5-copy-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda mark: granted(tmp_path, mark), marks))
    lines = (tmp_path / ".ssh" / "authorized_keys").read_text().splitlines()
    assert sorted(line.split()[-1] for line in lines) == marks


def test_a_look_counts_large_files_and_finds_the_manifest(tmp_path: Path) -> None:
    folder, root = tmp_path / "m", tmp_path / "root"
    folder.mkdir()
    (root / "state").mkdir(parents=True)
    with (folder / "large").open("wb") as file:
        file.truncate(700 << 30)
    look = script(_LOOK, folder, "m", root)
    assert run(look, tmp_path).stdout == f"{700 << 30}\n"
    (root / "state" / "m.sha256").write_text("aa  large\n")
    assert run(look, tmp_path).stdout == f"{700 << 30}\naa  large\n"


def test_room_is_asked_where_the_folder_will_be(tmp_path: Path) -> None:
    free, held = run(script(_ROOM, tmp_path / "not" / "yet"), tmp_path).stdout.split()
    assert int(free) > 0
    assert held == "0"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("ssh: connect to host 192.0.2.1 port 2222: Connection refused", "model.source_address"),
        ("Permission denied (publickey).", "authorized_keys of deploy"),
        ("No space left on device", None),
    ],
)
def test_what_to_do_about_a_transfer_that_failed(said: str, hint: str | None) -> None:
    error: Glm5Error = _explained(CommandFailedError(said), FakeHost("bw1"), PEER)
    assert said in error.message
    assert error.hint is None if hint is None else hint in (error.hint or "")
