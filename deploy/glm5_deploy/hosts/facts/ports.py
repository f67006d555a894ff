"""Facts about listening TCP ports and who holds them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

LIST_PORTS = r"""
if command -v ss >/dev/null; then ss -Hltnp; else cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; fi
"""

LISTEN = "0A"
"""The state in /proc/net/tcp."""


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket.

    Args:
        address: IP address; ``0.0.0.0``, ``::`` or ``*`` for all.
        process: program that holds it; None where that takes more rights, or ``ss`` is missing.
    """

    address: str
    port: int
    process: str | None = None
    pid: int | None = None


def parse_ports(output: FactOutput) -> tuple[Listener, ...]:
    """Read ``ss -Hltnp``, or ``/proc/net/tcp`` where there is no ss."""
    found = []
    for line in output.stdout.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        if words[0] == "LISTEN":
            found.append(_from_ss(words[3], line))
        elif words[3] == LISTEN and ":" in words[1]:
            found.append(_from_proc(words[1]))
    return tuple(dict.fromkeys(found))


def _from_ss(local: str, line: str) -> Listener:
    address, _, port = local.rpartition(":")
    address = address.strip("[]").split("%")[0]
    holder = re.search(r'users:\(\("(.*?)",pid=(\d+)', line)
    if holder is None:
        return Listener(address, int(port))
    return Listener(address, int(port), holder[1], int(holder[2]))


def _from_proc(local: str) -> Listener:
    address, _, port = local.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    return Listener(str(ipaddress.ip_address(b"".join(words))), int(port, 16))


PORT_FACT = Fact("ports", script(LIST_PORTS), parse_ports)
