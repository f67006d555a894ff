"""Configuration for the OpenSSH client, so that rsync's ssh takes the very route that we take.

A file says it all, jumps included; as arguments it would be a proxy command quoted in another.
"""

from __future__ import annotations

import math
from pathlib import Path

from glm5_deploy.config.address import bracketed
from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.ssh_config import Route, known_hosts_name

SILENT_KEEPALIVES = 3
"""So many unanswered keepalives end a connection: rsync's as ours."""

ALWAYS = (
    ("StrictHostKeyChecking", "yes"),
    ("UpdateHostKeys", "no"),
    ("ForwardAgent", "no"),
    ("ForwardX11", "no"),
    ("ClearAllForwardings", "yes"),
    ("ControlMaster", "no"),
    ("ControlPath", "none"),
    ("PermitLocalCommand", "no"),
    ("RequestTTY", "no"),
    ("LogLevel", "ERROR"),
    ("PreferredAuthentications", "publickey"),
    ("NumberOfPasswordPrompts", "1"),
)
"""What holds for every hop, whatever the user's file says."""

CIPHERS = "Host *\n  Ciphers ^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Fast where the processor has AES instructions. It stands last: what the user says counts."""

USUAL_FILES = "  Include ~/.ssh/config\n  Include /etc/ssh/ssh_config"


def client_config(route: Route, *, keepalive: int, asks: bool) -> str:
    """The text of an ssh_config for this route and nothing else.

    Args:
        keepalive: seconds.
        asks: a helper gives passphrases; without one ssh must never ask.
    """
    blocks = [_block(hop, hop.jumps, keepalive, asks) for hop in (*route.jumps, route)]
    # what we do not model (ciphers, certificates, tokens) still comes from the user's files
    rest = ["Host *", _own_file(route.config_file) if route.config_file else USUAL_FILES]
    return "\n".join([*(line for block in blocks for line in block), *rest, CIPHERS, ""])


def _own_file(path: Path) -> str:
    """The text itself: a file that others may write is good enough for ``-F``, not for Include.

    Bytes that are no UTF-8 are kept as they are.
    """
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot read the ssh_config {path}: {error.strerror}") from error


def _block(hop: Route, jumps: tuple[Route, ...], keepalive: int, asks: bool) -> list[str]:
    settings = [
        ("HostName", quoted(hop.address)),
        ("User", quoted(hop.user)),
        ("Port", str(hop.port)),
        *_proxy(hop, jumps),
        *(("IdentityFile", quoted(str(path))) for path in hop.identity_files),
        ("IdentityAgent", quoted(hop.identity_agent) if hop.identity_agent else "none"),
        ("IdentitiesOnly", "yes" if hop.identities_only else "no"),
        *_host_keys(hop),
        ("ConnectTimeout", str(math.ceil(hop.connect_timeout))),
        ("ServerAliveInterval", str(keepalive)),
        ("ServerAliveCountMax", str(SILENT_KEEPALIVES)),
        ("BatchMode", "no" if asks else "yes"),
        *ALWAYS,
    ]
    return [f"Host {pattern(hop.alias)}", *(f"  {key} {value}" for key, value in settings)]


def _proxy(hop: Route, jumps: tuple[Route, ...]) -> list[tuple[str, str]]:
    """Either, never both: the first of the two keywords that occurs disables the other."""
    if jumps:
        return [("ProxyJump", ",".join(bracketed(jump.alias) for jump in jumps))]
    if hop.proxy_command is not None:
        return [("ProxyCommand", _one_line(hop.proxy_command).replace("%", "%%"))]
    return [("ProxyJump", "none")]


def _host_keys(hop: Route) -> list[tuple[str, str]]:
    files = " ".join(quoted(str(path)) for path in hop.known_hosts) or "none"
    system = " ".join(quoted(str(path)) for path in hop.system_known_hosts) or "none"
    settings = [("UserKnownHostsFile", files), ("GlobalKnownHostsFile", system)]
    if hop.host_key_name != known_hosts_name("", hop.address, hop.port):
        settings.append(("HostKeyAlias", quoted(hop.host_key_name)))
    return settings


def quoted(value: str) -> str:
    """A value in ssh_config's quotes, its percent signs doubled."""
    if '"' in value or "\\" in value:
        raise UsageError(f"OpenSSH's configuration cannot hold quotes or backslashes: {value}")
    return f'"{_one_line(value).replace("%", "%%")}"'


def pattern(alias: str) -> str:
    """A host name as a pattern that matches itself alone."""
    if any(character in alias for character in '*?! ,"\n'):
        raise UsageError(f"{alias!r} is no host name")
    return alias


def _one_line(value: str) -> str:
    if "\n" in value:
        raise UsageError(f"a setting for ssh cannot hold a newline: {value!r}")
    return value


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that only we can read, from its first byte on."""
    import os

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
