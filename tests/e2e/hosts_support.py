"""What the end-to-end tests of hosts share: hosts opened with the bed's key, and its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glm5_deploy.config.models import Become, Connection
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.ssh import SshHost

NASTY = "p;a 'b$\"%üé\\"
"""A password that every careless quoting breaks on."""


def connection(bed: Bed, node: str, user: str = "root", **settings: Any) -> Connection:  # noqa: ANN401
    """The inventory's settings for a host of the bed; keyword arguments replace them."""
    defaults = {
        "address": bed.hosts[node].address,
        "user": user,
        "identity_file": bed.key,
        "known_hosts": bed.known_hosts,
        "ssh_config": Path("/dev/null"),
    }
    return Connection(**{**defaults, **settings})


@contextmanager
def opened(
    bed: Bed,
    node: str = "node1",
    user: str = "root",
    *,
    password: str | None = None,
    passphrase: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> Iterator[SshHost]:
    """A host, closed afterwards."""
    host = SshHost(
        node,
        connection(bed, node, user, **settings),
        Become(),
        sudo_password=None if password is None else lambda: Secret(password),
        passphrase=None if passphrase is None else lambda: Secret(passphrase),
    )
    try:
        yield host
    finally:
        host.close()


def processes(host: BedHost, text: str) -> list[str]:
    """Command lines on the host that hold the text."""
    listing = host.exec(["ps", "-eo", "args="]).stdout
    return [line for line in listing.splitlines() if text in line and "ps -eo" not in line]


def eventually(condition: Callable[[], bool], limit: float = 15.0) -> bool:
    """Whether it becomes true in time; for what a host does on its own."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
