"""The user's ssh_config, as the installed OpenSSH reads it, and what the inventory says instead."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import pytest
from glm5_deploy.config.models import Connection
from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.ssh_client import client_config
from glm5_deploy.hosts.ssh_config import (
    Hop,
    Options,
    Route,
    expand,
    parse_hop,
    parse_options,
    resolve,
    split_paths,
)


def route(tmp_path: Path, config: str, name: str = "bw1", **settings: Any) -> Route:  # noqa: ANN401
    file = tmp_path / "config"
    file.write_text(config)
    return resolve(name, Connection(ssh_config=file, **settings))


def test_defaults(tmp_path: Path) -> None:
    found = route(tmp_path, "")
    assert (found.alias, found.address, found.port) == ("bw1", "bw1", 22)
    assert found.user == getpass.getuser()
    assert found.jumps == ()
    assert found.proxy_command is None
    assert found.connect_timeout == 10
    assert found.host_key_name == "bw1"
    assert Path.home() / ".ssh/id_ed25519" in found.identity_files
    assert found.known_hosts[0] == Path.home() / ".ssh/known_hosts"
    assert found.system_known_hosts[0] == Path("/etc/ssh/ssh_known_hosts")


CONFIG = """
Host bw1
  HostName 10.0.0.%h
  User al
  Port 2222
  IdentityFile ~/keys/%h-%r
  IdentityAgent none
  IdentitiesOnly yes
  ConnectTimeout 7
  UserKnownHostsFile "/home/al/known hosts" /k2
  ForwardAgent /no/such.sock
Match host 10.0.0.bw1
  Compression yes
"""


def test_what_the_file_says(tmp_path: Path) -> None:
    found = route(tmp_path, CONFIG)
    assert found.label == "al@10.0.0.bw1 port 2222"
    assert found.identity_files == (Path.home() / "keys/10.0.0.bw1-al",)
    assert found.identity_agent is None
    assert found.identities_only
    assert found.connect_timeout == 7
    assert found.known_hosts == (Path("/home/al/known hosts"), Path("/k2"))
    assert found.host_key_name == "[10.0.0.bw1]:2222"


def test_the_inventory_wins(tmp_path: Path) -> None:
    found = route(
        tmp_path,
        CONFIG,
        user="eve",
        port=22,
        identity_file=Path("/own key"),
        known_hosts=Path("~/kh"),
        connect_timeout=2.5,
    )
    assert found.label == "eve@10.0.0.bw1"
    assert found.identity_files[0] == Path("/own key")
    assert found.known_hosts == (Path.home() / "kh",)
    assert found.connect_timeout == 2.5
    assert route(tmp_path, CONFIG, name="x", address="bw1").user == "al"


@pytest.mark.parametrize(
    ("config", "settings", "hops"),
    [
        ("Host bw1\n ProxyJump a,b@c:2200\n", {}, ["me@a", "b@c port 2200"]),
        ("Host bw1\n ProxyJump a\nHost a\n ProxyJump b\n", {}, ["me@b", "me@a"]),
        ("Host bw1\n ProxyJump a,b\nHost b\n ProxyJump c\n", {}, ["me@a", "me@b"]),
        ("Host bw1\n ProxyJump none\nHost *\n ProxyJump a\n", {}, []),
        ("Host bw1\n ProxyJump a\n", {"proxy_jump": "none"}, []),
        ("Host bw1\n ProxyJump a\n", {"proxy_jump": "z"}, ["me@z"]),
        ("Host bw1\n ProxyCommand x\n", {"proxy_jump": "z"}, ["me@z"]),
        ("Host bw1\n ProxyJump j\nHost j\n HostName 1.2.3.4\n User u\n", {}, ["u@1.2.3.4"]),
        ("Host bw1\n ProxyJump u@[fd00::1]:23\n", {}, ["u@fd00::1 port 23"]),
    ],
)
def test_jumps_in_dialling_order(
    tmp_path: Path, config: str, settings: dict[str, Any], hops: list[str]
) -> None:
    found = route(tmp_path, config, **settings)
    me = getpass.getuser()
    assert [hop.label for hop in found.jumps] == [hop.replace("me@", f"{me}@") for hop in hops]
    assert found.proxy_command is None


def test_a_circle_of_jumps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="circle"):
        route(tmp_path, "Host bw1\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n")


def test_proxy_command_tokens(tmp_path: Path) -> None:
    config = "Host bw1\n HostName h\n Port 23\n User u\n ProxyCommand nc %h %p %r %n 100%%\n"
    assert route(tmp_path, config).proxy_command == "nc h 23 u bw1 100%"
    assert route(tmp_path, "Host bw1\n ProxyCommand none\n").proxy_command is None


def test_host_key_alias(tmp_path: Path) -> None:
    assert route(tmp_path, "Host *\n HostKeyAlias al\n Port 23\n").host_key_name == "al"


def test_include_is_followed(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host bw1\n  User included\n")
    assert route(tmp_path, f"Include {tmp_path}/more\n").user == "included"


def test_errors_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?i)nosuchkeyword"):
        route(tmp_path, "Host *\n  NoSuchKeyword x\n")
    with pytest.raises(UsageError, match="missing"):
        resolve("bw1", Connection(ssh_config=tmp_path / "missing"))
    with pytest.raises(UsageError, match="no address"):
        resolve("-oProxyCommand=x", Connection())


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("h", Hop("h", None, None)),
        ("u@h", Hop("h", "u", None)),
        ("u@x@h:23", Hop("h", "u@x", 23)),
        ("fd00::1", Hop("fd00::1", None, None)),
        ("u@[fd00::1]:23", Hop("fd00::1", "u", 23)),
        ("ssh://h:23/", Hop("h", None, 23)),
    ],
)
def test_hops(text: str, hop: Hop) -> None:
    assert parse_hop(text) == hop


@pytest.mark.parametrize("text", ["", "u@", "h:x", "-oX"])
def test_wrong_hops(text: str) -> None:
    with pytest.raises(UsageError, match="proxy jump"):
        parse_hop(text)


def test_small_parts() -> None:
    assert parse_options("Host a b\nidentityfile x\nidentityfile y z\n") == {
        "host": ("a b",),
        "identityfile": ("x", "y z"),
    }
    assert expand("%h-%%-%z-%", {"h": "H", "%": "%"}) == "H-%-%z-%"
    assert split_paths("/a b /c none", {}) == (Path("/a b"), Path("/c none"))
    assert split_paths("none", {}) == ()


def test_the_client_gets_the_same_route(tmp_path: Path) -> None:
    """What we write for rsync's ssh resolves to the very route it was written from."""
    known = tmp_path / "known hosts"
    settings = {"identity_file": Path("/own key"), "known_hosts": known, "user": "al"}
    config = (
        "Host bw1\n HostName 10.0.0.1\n Port 2222\n HostKeyAlias k\n ProxyJump j1,u@j2:23\n"
        " Ciphers aes256-ctr\n LocalForward 1 localhost:2\nHost j1\n ProxyCommand nc 100%% %h\n"
    )
    wanted = route(tmp_path, config, **settings)
    written = tmp_path / "written"
    written.write_text(client_config(wanted, keepalive=15, asks=False))
    asked: dict[str, Options] = {}

    def query(alias: str, arguments: tuple[str, ...]) -> Options:
        from glm5_deploy.hosts.ssh_config import query_openssh

        asked[alias] = query_openssh(alias, arguments)
        return asked[alias]

    again = resolve("bw1", Connection(ssh_config=written), query=query)
    for before, after in zip((*wanted.jumps, wanted), (*again.jumps, again), strict=True):
        for field in ("alias", "address", "port", "user", "proxy_command", "host_key_name"):
            assert getattr(before, field) == getattr(after, field), field
        assert before.identity_files[0] == after.identity_files[0]
        assert before.known_hosts == after.known_hosts
    options = asked["bw1"]
    assert options["ciphers"] == ("aes256-ctr",)
    assert options["stricthostkeychecking"] == ("true",)
    assert options["batchmode"] == ("yes",)
    assert options["clearallforwardings"] == ("yes",)
    assert options["serveraliveinterval"] == ("15",)


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a\nb"])
def test_what_the_client_cannot_hold_is_refused(tmp_path: Path, path: str) -> None:
    found = route(tmp_path, "", known_hosts=Path(path))
    with pytest.raises(UsageError):
        client_config(found, keepalive=15, asks=False)
