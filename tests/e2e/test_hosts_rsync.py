"""The rsync program between here and a real host."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.demo.bed import Bed
from glm5_deploy.errors import CommandFailedError, UnreachableError
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.host import RsyncStats

from tests.e2e.hosts_support import eventually, opened, processes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Names that a shell would take apart."""
    folder = tmp_path / 'it\'s a "source"'
    (folder / "sub dir").mkdir(parents=True)
    (folder / "$HOME `x`").write_bytes(os.urandom(200_000))
    (folder / "sub dir" / "run").write_text("#!/bin/sh\n")
    (folder / "sub dir" / "run").chmod(0o700)
    (folder / "-n").write_text("x")
    return folder


TARGET = PurePosixPath('/tmp/hosts rsync/it\'s $HOME "t"')


@pytest.fixture(autouse=True)
def _clean(bed: Bed) -> None:
    bed.hosts["node1"].exec(["rm", "-rf", TARGET.parent])


def listing(bed: Bed, folder: PurePosixPath = TARGET) -> list[str]:
    shown = bed.hosts["node1"].exec(["find", folder, "-mindepth", "1", "-printf", "%m %P\n"])
    return sorted(shown.stdout.splitlines())


def test_a_folder_with_any_names_and_again_without_change(bed: Bed, source: Path) -> None:
    seen: list[float | None] = []
    with opened(bed) as host:
        stats = host.rsync(source, TARGET, progress=lambda _, fraction: seen.append(fraction))
        assert stats.files == 3
        assert stats.bytes_sent > 200_000
        assert seen[-1] == 1.0
        again = host.rsync(source, TARGET)
    assert again.files == 0
    assert listing(bed) == ["644 $HOME `x`", "644 -n", "755 sub dir", "755 sub dir/run"]


def test_one_file_some_names_deletion_and_checksum(bed: Bed, source: Path) -> None:
    node = bed.hosts["node1"]
    with opened(bed) as host:
        assert host.rsync(source / "-n", TARGET).files == 1
        assert listing(bed) == ["644 -n"]
        assert host.rsync(source, TARGET, include=("sub dir/run", "$HOME `x`")).files == 2
        node.exec(["touch", TARGET / "stale"])
        assert host.rsync(source, TARGET, delete=True) == RsyncStats(
            1, pytest.approx(0, abs=10_000)
        )
        assert "644 stale" not in listing(bed)
        # the same size and time, other contents
        same = 'printf y >"$0"; touch -d "$1" "$0"'
        changed = f"@{(source / '-n').stat().st_mtime}"
        node.exec(["sh", "-c", same, TARGET / "-n", changed])
        assert host.rsync(source, TARGET).files == 0
        assert host.rsync(source, TARGET, checksum=True).files == 1
        assert host.get(TARGET / "-n") == b"x"


def test_variables_that_would_change_rsync_are_cleared(
    bed: Bed, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_OLD_ARGS", "1")
    monkeypatch.setenv("RSYNC_RSH", "false")
    monkeypatch.setenv("RSYNC_PARTIAL_DIR", "/elsewhere")
    with opened(bed) as host:
        host.rsync(source, TARGET)
    assert "644 -n" in listing(bed)


def test_through_a_jump_and_with_a_passphrase(bed: Bed, source: Path, tmp_path: Path) -> None:
    phrase, key = 'it\'s "$x" ü', tmp_path / "encrypted key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", key], check=True)
    for name in ("node1", "node2"):
        public = key.with_suffix(".pub").read_text()
        bed.hosts[name].exec(["tee", "-a", "/root/.ssh/authorized_keys"], input=public)
    jump = f"root@{bed.hosts['node2'].address}"
    with opened(bed, identity_file=key, passphrase=phrase, proxy_jump=jump) as host:
        assert host.rsync(source, TARGET).files == 3


def test_an_unknown_host_key_is_refused_by_its_ssh_too(bed: Bed, source: Path) -> None:
    empty = source.parent / "known_hosts"
    empty.write_text("")
    with opened(bed) as host:
        host.run(command("true"))
        # our own connection stands; only rsync's ssh looks at the file again
        host._route = host.route.__class__(**{**vars(host.route), "known_hosts": (empty,)})
        with pytest.raises(CommandFailedError, match="host key"):
            host.rsync(source, TARGET)


def test_missing_rsync_permission_and_full_disk_are_told(bed: Bed, source: Path) -> None:
    node = bed.hosts["node1"]
    node.add_user("hosts-rsync", None)
    try:
        with (
            opened(bed, user="hosts-rsync") as host,
            pytest.raises(CommandFailedError, match="hosts-rsync cannot make /root/x"),
        ):
            host.rsync(source, PurePosixPath("/root/x"))
        node.exec(["mkdir", "-p", TARGET])
        with (
            opened(bed, user="hosts-rsync") as host,
            pytest.raises(CommandFailedError, match="no permission"),
        ):
            host.rsync(source, TARGET)
    finally:
        node.remove_user("hosts-rsync")
    node.tmpfs(str(TARGET), "100k")
    try:
        with opened(bed) as host, pytest.raises(CommandFailedError, match="disk is full"):
            host.rsync(source, TARGET)
    finally:
        node.exec(["umount", "--lazy", TARGET])
    node.exec(["mv", "/usr/bin/rsync", "/usr/bin/rsync.away"])
    try:
        with (
            opened(bed) as host,
            pytest.raises(CommandFailedError, match="rsync is not installed there"),
        ):
            host.rsync(source, TARGET)
    finally:
        node.exec(["mv", "/usr/bin/rsync.away", "/usr/bin/rsync"])


KILL_WHEN_SOME_IS_THERE = """
until [ "$(stat -c %s "$1"/.file.* 2>/dev/null || echo 0)" -gt 20000000 ]; do :; done
pkill -x rsync
"""


def test_a_broken_transfer_is_resumed(bed: Bed, tmp_path: Path) -> None:
    source, node = tmp_path / "big", bed.hosts["node1"]
    source.mkdir()
    (source / "file").write_bytes(os.urandom(150_000_000))
    seen: list[str] = []
    words = ["sh", "-c", KILL_WHEN_SOME_IS_THERE, "test", TARGET]
    killer = threading.Thread(target=node.exec, args=(words,), daemon=True)
    killer.start()
    with opened(bed) as host:
        stats = host.rsync(source, TARGET, progress=lambda text, _: seen.append(text))
        killer.join(timeout=30)
        assert "connection lost, resuming" in seen
        # what had arrived was not sent again
        assert stats.bytes_sent < 150_000_000
        sums = command("sha256sum", TARGET / "file")
        here = subprocess.run(["sha256sum", source / "file"], capture_output=True, check=True)
        assert host.run(sums).stdout.split()[0] == here.stdout.split()[0].decode()
    assert listing(bed) == ["644 file"]


def test_an_interrupted_transfer_leaves_no_process_and_no_final_name(
    bed: Bed, tmp_path: Path
) -> None:
    source, node = tmp_path / "big", bed.hosts["node1"]
    source.mkdir()
    (source / "file").touch()
    # Holes only, which are sent all the same: more than a fast machine sends before it is stopped.
    os.truncate(source / "file", 4 << 30)

    def interrupt(_: str, __: float | None) -> None:
        raise KeyboardInterrupt

    with opened(bed) as host:
        with pytest.raises(KeyboardInterrupt):
            host.rsync(source, TARGET, progress=interrupt)
        assert eventually(lambda: not processes(node, "rsync --server"))
        assert "644 file" not in listing(bed)
        closer = threading.Event()

        def close(_: str, __: float | None) -> None:
            if not closer.is_set():
                closer.set()
                threading.Thread(target=host.close).start()

        with pytest.raises(UnreachableError, match="closed"):
            host.rsync(source, TARGET, progress=close)
    assert eventually(lambda: not processes(node, "rsync --server"))
