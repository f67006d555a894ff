"""OpenSSH's known_hosts files: reading them, and deciding on the key that a server shows.

paramiko's reader skips ``@revoked`` lines and knows no patterns; Fabric accepts a key that
contradicts the file. So both are done here: `parse` and `judge` are pure, and a verdict carries
file and line for the message.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.errors import UnreachableError


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file.

    Args:
        marker: "", "revoked" or "cert-authority".
        names: patterns, or one hashed name.
        key_type: as in the file, for instance ``ssh-ed25519``.
        key: the key's blob.
    """

    marker: str
    names: tuple[str, ...]
    key_type: str
    key: bytes
    path: Path
    line: int

    def matches(self, name: str) -> bool:
        """Whether the line speaks of this name: a negated pattern excludes it."""
        wanted = [pattern for pattern in self.names if not pattern.startswith("!")]
        refused = [pattern[1:] for pattern in self.names if pattern.startswith("!")]
        if any(_fits(name, pattern) for pattern in refused):
            return False
        return any(_fits(name, pattern) for pattern in wanted)


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("|1|"):
        return _hashed(name, pattern)
    # OpenSSH's patterns have * and ? alone; brackets are those of [host]:port
    escaped = re.sub(r"\[", "[[]", pattern)
    return fnmatch.fnmatchcase(name.lower(), escaped.lower())


def _hashed(name: str, pattern: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        wanted = base64.b64decode(digest)
        found = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(found, wanted)


def parse(text: str, path: Path) -> list[Entry]:
    """Read a file's text; lines that OpenSSH would skip are skipped."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0)[1:] if words[0].startswith("@") else ""
        if len(words) < 3:
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue
        entries.append(Entry(marker, tuple(words[0].split(",")), words[1], key, path, number))
    return entries


def load(paths: Iterable[Path]) -> list[Entry]:
    """Entries of all files that exist and are readable."""
    entries = []
    for path in paths:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        entries.extend(parse(text, path))
    return entries


def fingerprint(key: bytes) -> str:
    """``SHA256:…`` as ``ssh-keygen -l`` prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


SIGNATURES = {
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""Key type in known_hosts → host key algorithms that prove it (paramiko 5 has no SHA-1)."""


def preferred_algorithms(
    entries: Iterable[Entry], names: Sequence[str], supported: Sequence[str]
) -> list[str]:
    """All supported algorithms, those first whose key the files know.

    As OpenSSH does: a known ed25519 key is not missed because the server would rather show another.
    """
    known = [
        algorithm
        for entry in entries
        if not entry.marker and any(entry.matches(name) for name in names)
        for algorithm in SIGNATURES.get(entry.key_type, (entry.key_type,))
    ]
    first = [algorithm for algorithm in dict.fromkeys(known) if algorithm in supported]
    return [*first, *(algorithm for algorithm in supported if algorithm not in first)]


@dataclass(frozen=True)
class ServerKey:
    """What the server showed."""

    key_type: str
    key: bytes

    def __str__(self) -> str:
        return f"{self.key_type} {fingerprint(self.key)}"


def lookup_names(host_key_name: str) -> tuple[str, ...]:
    """The names under which a key may be filed: ``[host]:port``, and, as OpenSSH accepts, the bare
    host.
    """
    bare = re.fullmatch(r"\[(.*)\]:[0-9]+", host_key_name)
    return (host_key_name, bare[1]) if bare else (host_key_name,)


def judge(
    entries: Sequence[Entry], host_key_name: str, server: ServerKey, file: Path, *, label: str
) -> None:
    """Accept the key silently, or refuse it.

    Args:
        entries: all lines of the system's and the user's files.
        host_key_name: ``host`` or ``[host]:port``.
        file: where advice tells the user to add a key.
        label: who was dialled, for messages.

    Raises:
        UnreachableError: the key is revoked, unknown, or not the one on file.
    """
    names = lookup_names(host_key_name)
    ours = [entry for entry in entries if entry.matches(host_key_name)]
    loosely = [entry for entry in entries if any(entry.matches(name) for name in names)]
    if any(entry.marker == "revoked" and entry.key == server.key for entry in loosely):
        raise _revoked(loosely, server, label)
    if any(not entry.marker and entry.key == server.key for entry in loosely):
        return
    plain = [entry for entry in ours if not entry.marker]
    same_type = [entry for entry in plain if entry.key_type == server.key_type]
    if same_type:
        raise _changed(same_type[0], host_key_name, server, label)
    raise _unknown(ours, host_key_name, server, file, label)


def _revoked(entries: Sequence[Entry], server: ServerKey, label: str) -> UnreachableError:
    entry = next(e for e in entries if e.marker == "revoked" and e.key == server.key)
    return UnreachableError(
        f"{label} shows a host key that is marked as revoked: {server} "
        f"({entry.path}, line {entry.line})",
        "the machine must get a new host key; do not connect to it until it has one",
    )


def _changed(entry: Entry, name: str, server: ServerKey, label: str) -> UnreachableError:
    known = ServerKey(entry.key_type, entry.key)
    forget = shlex.join(["ssh-keygen", "-R", name, "-f", str(entry.path)])
    return UnreachableError(
        f"the host key of {label} has CHANGED: known is {known} "
        f"({entry.path}, line {entry.line}), shown is {server}",
        "somebody may be listening in, or the machine was installed anew. Ask its administrator "
        f"for its fingerprint; only if it is the one shown, forget the old key with: {forget} "
        "(the next attempt says how to trust the new one)",
    )


def _unknown(
    others: Sequence[Entry], name: str, server: ServerKey, file: Path, label: str
) -> UnreachableError:
    types = sorted({entry.key_type for entry in others if not entry.marker})
    also = f" (known are only keys of type {', '.join(types)})" if types else ""
    if any(entry.marker == "cert-authority" for entry in others):
        also += " (certificates of hosts are not supported: trust the key itself)"
    line = f"{name} {server.key_type} {base64.b64encode(server.key).decode()}"
    folder = "" if file.parent.is_dir() else f"mkdir -p -m 700 {shlex.quote(str(file.parent))} && "
    trust = f"{folder}printf '%s\\n' {shlex.quote(line)} >> {shlex.quote(str(file))}"
    return UnreachableError(
        f"the host key of {label} is not known: {server}{also}",
        "on the machine itself, compare the fingerprint that "
        f"{server_fingerprint_command(server.key_type)} prints; if it is the same, "
        f"trust it with: {trust}",
    )


def server_fingerprint_command(key_type: str) -> str:
    """What prints the fingerprint on the server's own console."""
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key_type, "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"
