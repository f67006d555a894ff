"""Addresses: ``user@address:port`` as it is given on the command line, and where a server that is
bound to one is reached.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.config.errors import ConfigErrors, ConfigProblem
from glm5_deploy.config.node import Node
from glm5_deploy.config.numbers import natural


@dataclass(frozen=True, slots=True)
class Address:
    """A machine, with what was said about how to reach it."""

    address: str
    user: str | None = None
    port: int | None = None

    @property
    def name(self) -> str:
        """A host name for reports: the address, with what no name may hold replaced by dashes."""
        text = re.sub(r"[^A-Za-z0-9._-]", "-", self.address)[:64]
        return text if text[:1].isalnum() else f"host{text}"[:64]

    def settings(self, file: Path) -> Node:
        """As host settings; ``file`` is named in errors and gives the folder for relative paths."""
        given = {"address": self.address, "user": self.user, "port": self.port}
        connection = {
            key: Node(value, file, ("connection", key))
            for key, value in given.items()
            if value is not None
        }
        return Node({"connection": Node(connection, file, ("connection",))}, file)


_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}


def dial_address(bind: str) -> str:
    """Where to reach a server bound to ``bind``: a wildcard address is dialled as loopback."""
    return _WILDCARDS.get(bind, bind.strip("[]"))


def bracketed(address: str) -> str:
    """As it stands before a port: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def parse_address(text: str) -> Address:
    """``[user@]address[:port]``; IPv6 in brackets where a port follows.

    Raises:
        ConfigErrors: no address, or no such port.
    """
    user, at, rest = text.rpartition("@")
    if at and not user:
        raise _wrong(text, "the user is missing before `@`")
    address, port = _split(rest, text)
    if (
        not address
        or address.startswith("-")
        or any(not c.isprintable() or c.isspace() for c in text)
    ):
        raise _wrong(text, "the address is missing or no host name")
    return Address(address, user or None, port)


def _split(rest: str, text: str) -> tuple[str, int | None]:
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", rest)
    if bracketed:
        if not _is_ipv6(bracketed[1]):
            raise _wrong(text, f"`{bracketed[1]}` is no IPv6 address")
        return bracketed[1], _port(bracketed[2], text)
    if rest.count(":") > 1:
        if not _is_ipv6(rest):
            raise _wrong(text, f"`{rest}` is no IPv6 address; with a port, put it in brackets")
        return rest, None
    address, colon, port = rest.partition(":")
    return address, _port(port if colon else None, text)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _port(text: str | None, whole: str) -> int | None:
    if text is None:
        return None
    port = natural(text)
    if port is None or not 1 <= port <= 65535:
        raise _wrong(whole, f"`{text}` is no port (1 to 65535)")
    return port


def _wrong(text: str, message: str) -> ConfigErrors:
    return ConfigErrors(
        [
            ConfigProblem(
                None,
                None,
                None,
                repr(text),
                message,
                "write user@address[:port], IPv6 as user@[::1]:22",
            )
        ]
    )
