"""known_hosts: which lines speak of a host, and what is said about a key."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts.known_hosts import (
    ServerKey,
    fingerprint,
    judge,
    load,
    parse,
    preferred_algorithms,
)

FILE = Path("/home/al/.ssh/known_hosts")
GOOD, OTHER, RSA = b"good key", b"other key", b"rsa key"


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def lines(*rows: str) -> str:
    keys = {"GOOD": text(GOOD), "OTHER": text(OTHER), "RSA": text(RSA)}
    joined = "\n".join(rows)
    for name, key in keys.items():
        joined = joined.replace(name, key)
    return joined


def verdict(rows: list[str], name: str = "bw1", key: bytes = GOOD) -> str:
    try:
        server = ServerKey("ssh-ed25519", key)
        judge(parse(lines(*rows), FILE), name, server, FILE, label="al@bw1")
    except UnreachableError as error:
        return f"{error.message} | {error.hint}"
    return "accepted"


@pytest.mark.parametrize(
    "rows",
    [
        ["bw1 ssh-ed25519 GOOD comment"],
        ["bw1,10.0.0.1 ssh-ed25519 GOOD"],
        ["BW1 ssh-ed25519 GOOD"],
        ["\tbw*\tssh-ed25519\tGOOD"],
        ["bw? ssh-ed25519 GOOD"],
        ["# comment", "", "nonsense", "bw1 ssh-ed25519 not-base64!", "bw1 ssh-ed25519 GOOD"],
        ["bw1 ssh-ed25519 OTHER", "bw1 ssh-ed25519 GOOD"],
        ["@revoked bw1 ssh-ed25519 OTHER", "bw1 ssh-ed25519 GOOD"],
    ],
)
def test_accepted(rows: list[str]) -> None:
    assert verdict(rows) == "accepted"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([], ["is not known: ssh-ed25519 SHA256:", f"bw1 ssh-ed25519 {text(GOOD)}", str(FILE)]),
        (["bw2 ssh-ed25519 GOOD"], ["is not known"]),
        (["bw*,!bw1 ssh-ed25519 GOOD"], ["is not known"]),
        (["bw1 ssh-rsa RSA"], ["is not known", "known are only keys of type ssh-rsa"]),
        (["@cert-authority * ssh-ed25519 GOOD"], ["is not known", "certificates of hosts"]),
        (
            ["# x", "bw1 ssh-ed25519 OTHER"],
            [
                "CHANGED",
                f"known is ssh-ed25519 {fingerprint(OTHER)} ({FILE}, line 2)",
                f"shown is ssh-ed25519 {fingerprint(GOOD)}",
                f"ssh-keygen -R bw1 -f {FILE}",
            ],
        ),
        (["bw1 ssh-ed25519 GOOD", "@revoked * ssh-ed25519 GOOD"], ["revoked", "line 2"]),
        (["[bw1]:2222 ssh-ed25519 GOOD"], ["is not known"]),
        (["bw[12] ssh-ed25519 GOOD"], ["is not known"]),
    ],
)
def test_refused(rows: list[str], parts: list[str]) -> None:
    found = verdict(rows)
    for part in parts:
        assert part in found


def test_ports() -> None:
    assert verdict(["[bw1]:2222 ssh-ed25519 GOOD"], "[bw1]:2222") == "accepted"
    assert verdict(["bw1 ssh-ed25519 GOOD"], "[bw1]:2222") == "accepted"
    assert verdict(["[*]:2222 ssh-ed25519 GOOD"], "[bw1]:2222") == "accepted"
    # another key for the bare name is no contradiction: it may be another server
    assert "is not known" in verdict(["bw1 ssh-ed25519 OTHER"], "[bw1]:2222")
    assert "CHANGED" in verdict(["[bw1]:2222 ssh-ed25519 OTHER"], "[bw1]:2222")


def test_hashed_names_and_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub")
    kind, blob, *_ = public.read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"[bw1]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    (entry,) = load([known, tmp_path / "missing"])
    assert entry.names[0].startswith("|1|")
    assert entry.matches("[bw1]:2222")
    assert not entry.matches("bw1")
    shown = subprocess.run(
        ["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True
    )
    assert fingerprint(base64.b64decode(blob)) == shown.stdout.split()[1]


def test_algorithms_whose_key_is_known_come_first() -> None:
    supported = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"]
    rows = lines("bw1 ssh-rsa RSA", "bw2 ssh-ed25519 GOOD", "@revoked bw1 ecdsa-sha2-nistp256 GOOD")
    entries = parse(rows, FILE)
    assert preferred_algorithms(entries, ("bw1",), supported) == [
        "rsa-sha2-512",
        "rsa-sha2-256",
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
    ]
    assert preferred_algorithms(entries, ("bw9",), supported) == supported


@pytest.mark.parametrize("folder", ["", "no ssh/folder yet"])
def test_the_command_that_trusts_a_key_is_quoted(folder: str, tmp_path: Path) -> None:
    file = tmp_path / folder / "it's known"
    server = ServerKey("ssh-ed25519", GOOD)
    with pytest.raises(UnreachableError) as caught:
        judge([], "[bw1]:2222", server, file, label="al@bw1")
    trust = (caught.value.hint or "").partition("trust it with: ")[2]
    subprocess.run(["sh", "-c", trust], check=True)
    judge(load([file]), "[bw1]:2222", server, file, label="al@bw1")
