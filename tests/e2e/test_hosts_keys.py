"""Host keys, logins and routes against real SSH servers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from glm5_deploy.demo.bed import Bed
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.ssh import SshHost

from tests.e2e.hosts_support import opened

CLIENT = command("sh", "-c", "echo ${SSH_CONNECTION%% *}")
WAIT_AND_ADD = 'until [ -S "$0" ]; do sleep 0.02; done; exec ssh-add -q "$1"'
MAKE_RSA_KEY = "rm -f /root/rsa*; ssh-keygen -q -t rsa -b 2048 -N '' -f /root/rsa"
NO_RETRY: dict[str, Any] = {"connect_attempts": 1}


def unreachable(host: SshHost) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        host.run(command("true"))
    assert caught.value.exit_code == 3
    return caught.value


def host_key(bed: Bed, node: str) -> list[str]:
    return bed.hosts[node].host_key().split()


def fingerprint(bed: Bed, node: str) -> str:
    path = "/etc/ssh/ssh_host_ed25519_key.pub"
    return str(bed.hosts[node].exec(["ssh-keygen", "-lf", path]).stdout.split()[1])


def test_an_unknown_key_is_refused_and_the_advice_works(bed: Bed, tmp_path: Path) -> None:
    known = tmp_path / "known hosts"
    with opened(bed, known_hosts=known) as host:
        error = unreachable(host)
    assert "is not known: ssh-ed25519 " + fingerprint(bed, "node1") in error.message
    assert error.hint is not None
    advice = error.hint.partition("trust it with: ")[2]
    subprocess.run(["sh", "-c", advice], check=True)
    with opened(bed, known_hosts=known) as host:
        assert host.run(command("true")).ok


def test_a_changed_key_is_refused_and_the_advice_works(bed: Bed, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    address = bed.hosts["node1"].address
    known.write_text(f"# first\n{address} {' '.join(host_key(bed, 'node2'))}\n")
    with opened(bed, known_hosts=known) as host:
        error = unreachable(host)
    for part in (
        "CHANGED",
        fingerprint(bed, "node1"),
        fingerprint(bed, "node2"),
        f"{known}, line 2",
    ):
        assert part in error.message
    found = re.search(r"forget the old key with: (.*?) \(the next", error.hint or "")
    assert found
    subprocess.run(shlex.split(found[1]), check=True)
    with opened(bed, known_hosts=known) as host:
        assert "is not known" in unreachable(host).message


def test_a_revoked_key_is_refused_though_it_is_known(bed: Bed, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    address, key = bed.hosts["node1"].address, " ".join(host_key(bed, "node1"))
    known.write_text(f"{address} {key}\n@revoked * {key}\n")
    with opened(bed, known_hosts=known) as host:
        assert "revoked" in unreachable(host).message


def test_hashed_names_are_found(bed: Bed, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"{bed.hosts['node1'].address} {' '.join(host_key(bed, 'node1'))}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")
    with opened(bed, known_hosts=known) as host:
        assert host.run(command("true")).ok


@pytest.fixture
def second_sshd(bed: Bed) -> Iterator[int]:
    """Another SSH server on node1 that prefers an ECDSA key."""
    node = bed.hosts["node1"]
    make = "rm -f /root/ecdsa*; ssh-keygen -q -t ecdsa -N '' -f /root/ecdsa"
    node.exec(["sh", "-c", make])
    options = ["-o", "HostKey=/root/ecdsa", "-o", "HostKey=/etc/ssh/ssh_host_ed25519_key"]
    orders = ["-o", "HostKeyAlgorithms=ecdsa-sha2-nistp256,ssh-ed25519"]
    sshd = ["/usr/sbin/sshd", "-D", "-p", "2222", *options, *orders]
    node.exec(["systemd-run", "--quiet", "--unit=hosts-sshd", *sshd])
    node.exec(
        ["sh", "-c", "until ss -Hltn sport = 2222 | grep -q .; do sleep 0.05; done"], timeout=20
    )
    yield 2222
    node.exec(["systemctl", "stop", "hosts-sshd"])


@pytest.mark.parametrize("name", ["[{address}]:2222", "{address}", "[{address}]:*"])
def test_a_known_key_is_asked_for_and_ports_count(
    bed: Bed, tmp_path: Path, second_sshd: int, name: str
) -> None:
    known = tmp_path / "known_hosts"
    name = name.format(address=bed.hosts["node1"].address)
    known.write_text(f"{name} {' '.join(host_key(bed, 'node1'))}\n")
    with opened(bed, known_hosts=known, port=second_sshd) as host:
        assert host.run(command("true")).ok


def test_another_port_is_another_host(bed: Bed, tmp_path: Path, second_sshd: int) -> None:
    known = tmp_path / "known_hosts"
    with opened(bed, known_hosts=known, port=second_sshd) as host:
        error = unreachable(host)
    assert f"[{bed.hosts['node1'].address}]:2222 " in (error.hint or "")


@pytest.mark.parametrize(
    ("option", "message", "hint"),
    [
        (
            "KexAlgorithms=diffie-hellman-group14-sha1",
            "no common key exchange algorithm: it offers only diffie-hellman-group14-sha1",
            "SHA-1",
        ),
        (
            "HostKeyAlgorithms=ssh-rsa",
            "no common host key algorithm: it offers only",
            "ssh-ed25519",
        ),
        ("MACs=umac-64@openssh.com", "no common MAC algorithm: it offers only umac", "hmac-sha2"),
        ("PubkeyAuthentication=no", "the server takes no keys, only: ", "PubkeyAuthentication"),
    ],
)
def test_what_an_odd_server_lacks_is_named(bed: Bed, option: str, message: str, hint: str) -> None:
    node = bed.hosts["node1"]
    more = ["-o", "Ciphers=aes128-ctr", "-o", "PasswordAuthentication=yes"]
    if option.startswith("HostKey"):
        node.exec(["sh", "-c", MAKE_RSA_KEY])
        more += ["-o", "HostKey=/root/rsa"]
    sshd = ["/usr/sbin/sshd", "-D", "-p", "2224", "-o", option, *more]
    node.exec(["systemd-run", "--quiet", "--unit=hosts-odd", *sshd])
    try:
        node.exec(["sh", "-c", "until ss -Hltn sport = 2224 | grep -q .; do sleep 0.05; done"])
        with opened(bed, port=2224, **NO_RETRY) as host:
            error = unreachable(host)
    finally:
        node.exec(["systemctl", "stop", "hosts-odd"])
    assert message in error.message
    assert hint in (error.hint or "")


def test_what_was_tried_is_listed(bed: Bed, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with opened(bed, identity_file=key) as host:
        error = unreachable(host)
    assert f"{key}: not accepted" in error.message
    assert "ssh-copy-id" in (error.hint or "")
    with opened(bed, identity_file=tmp_path / "gone") as host:
        assert f"{tmp_path / 'gone'}: does not exist" in unreachable(host).message


@pytest.fixture
def encrypted_key(bed: Bed, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    phrase = "pass 'w\"$ü"
    key = tmp_path / "encrypted"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", key], check=True)
    node, file = bed.hosts["node1"], "/root/.ssh/authorized_keys"
    before = node.exec(["cat", file]).stdout
    node.exec(["tee", "-a", file], input=key.with_suffix(".pub").read_text())
    yield key, phrase
    node.exec(["tee", file], input=before)


def test_passphrases(bed: Bed, encrypted_key: tuple[Path, str]) -> None:
    key, phrase = encrypted_key
    with opened(bed, identity_file=key, passphrase=phrase) as host:
        assert host.run(command("true")).ok
    with opened(bed, identity_file=key) as host:
        error = unreachable(host)
        assert "encrypted" in error.message
        assert "identity_passphrase" in (error.hint or "")
    with opened(bed, identity_file=key, passphrase="wrong") as host:
        assert "does not open it" in unreachable(host).message


def test_an_agent_holds_the_key(
    bed: Bed, encrypted_key: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, phrase = encrypted_key
    socket, helper = tmp_path / "agent", tmp_path / "askpass"
    helper.write_text('#!/bin/sh\nprintf "%s\\n" "$TEST_PHRASE"\n')
    helper.chmod(0o700)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        subprocess.run(
            [
                "sh",
                "-c",
                WAIT_AND_ADD,
                socket,
                key,
            ],
            check=True,
            env={
                **os.environ,
                "SSH_AUTH_SOCK": str(socket),
                "SSH_ASKPASS": str(helper),
                "SSH_ASKPASS_REQUIRE": "force",
                "TEST_PHRASE": phrase,
            },
            stdin=subprocess.DEVNULL,
        )
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        with opened(bed, identity_file=None) as host:
            assert host.run(command("true")).ok
        monkeypatch.delenv("SSH_AUTH_SOCK")
        config = tmp_path / "config"
        config.write_text(f'Host *\n  IdentityAgent "{socket}"\n')
        with opened(bed, identity_file=key, ssh_config=config) as host:
            assert host.run(command("true")).ok
        config.write_text("Host *\n  IdentityAgent none\n")
        with opened(bed, identity_file=None, ssh_config=config) as host:
            unreachable(host)
    finally:
        agent.terminate()
        agent.wait()


def test_jumps_are_dialled_in_openssh_order(bed: Bed) -> None:
    hops = f"root@{bed.hosts['node2'].address},root@{bed.hosts['node3'].address}:22"
    with opened(bed, proxy_jump=hops) as host:
        assert host.run(CLIENT).stdout.strip() == bed.hosts["node3"].address
    with opened(bed, proxy_jump=f"root@{bed.hosts['node2'].address}") as host:
        assert host.run(CLIENT).stdout.strip() == bed.hosts["node2"].address


def test_a_jump_hosts_key_is_verified_too(bed: Bed, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"{bed.hosts['node1'].address} {' '.join(host_key(bed, 'node1'))}\n")
    jump = f"root@{bed.hosts['node2'].address}"
    with opened(bed, proxy_jump=jump, known_hosts=known) as host:
        message = unreachable(host).message
    assert f"host key of {jump} is not known" in message


def test_a_jump_that_cannot_reach_the_host_says_so(bed: Bed) -> None:
    jump = f"root@{bed.hosts['node2'].address}"
    with opened(bed, proxy_jump=jump, port=9, **NO_RETRY) as host:
        assert "the jump host" in unreachable(host).message


def test_the_users_configuration_counts_and_the_inventory_wins(bed: Bed, tmp_path: Path) -> None:
    included, config = tmp_path / "included", tmp_path / "config"
    included.write_text(
        f"Host alias\n  HostName {bed.hosts['node1'].address}\n  User root\n"
        f"  IdentityFile {bed.key}\n  UserKnownHostsFile {bed.known_hosts}\n"
        f"  ProxyJump root@hop\n  ForwardAgent /no/such/socket\n  ConnectTimeout none\n"
        f"Host hop\n  HostName {bed.hosts['node2'].address}\n"
        f"  IdentityFile {bed.key}\n  UserKnownHostsFile {bed.known_hosts}\n"
    )
    config.write_text(f"Include {included}\nMatch all\n  IdentitiesOnly yes\n")
    bare = {"identity_file": None, "known_hosts": None, "ssh_config": config, "address": "alias"}
    with opened(bed, **{**bare, "user": None}) as host:  # type: ignore[arg-type]
        assert host.login_user == "root"
        assert host.run(CLIENT).stdout.strip() == bed.hosts["node2"].address
    with opened(bed, **bare, proxy_jump="none") as host:  # type: ignore[arg-type]
        assert host.run(CLIENT).stdout.strip() not in ("", bed.hosts["node2"].address)


def test_a_proxy_command(bed: Bed, tmp_path: Path) -> None:
    config = tmp_path / "config"
    proxy = (
        f"ssh -F none -i {bed.key} -o UserKnownHostsFile={bed.known_hosts} "
        f"-W %h:%p root@{bed.hosts['node2'].address} 2>/dev/null"
    )
    config.write_text(f"Host *\n  ProxyCommand {proxy}\n")
    with opened(bed, ssh_config=config) as host:
        assert host.run(CLIENT).stdout.strip() == bed.hosts["node2"].address
    config.write_text("Host *\n  ProxyCommand exit 3\n")
    with opened(bed, ssh_config=config, **NO_RETRY) as host:
        assert "through the proxy command: exit 3" in unreachable(host).message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "no-such-host.invalid"}, "no such host name|name server"),
        ({"port": 9}, "connection refused"),
        ({"address": "127.0.0.1", "port": 1}, "connection refused"),
    ],
)
def test_each_failure_has_its_own_words(bed: Bed, settings: dict[str, Any], message: str) -> None:
    with opened(bed, **settings, **NO_RETRY) as host:
        assert re.search(message, unreachable(host).message)


def test_a_server_that_is_no_ssh_server(bed: Bed) -> None:
    node = bed.hosts["node1"]
    server = ["python3", "-m", "http.server", "2223"]
    node.exec(["systemd-run", "--quiet", "--unit=hosts-http", *server])
    try:
        node.exec(["sh", "-c", "until ss -Hltn sport = 2223 | grep -q .; do sleep 0.05; done"])
        with opened(bed, port=2223, **NO_RETRY) as host:
            assert "SSH" in unreachable(host).message
    finally:
        node.exec(["systemctl", "stop", "hosts-http"])
