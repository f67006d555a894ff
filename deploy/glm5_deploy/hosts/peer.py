"""Another host of the inventory, which a host's files may come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.hosts.host import Host


@dataclass(frozen=True)
class Peer:
    """A host that files are copied from.

    Args:
        address, port: as we reach it.
        root: where our things lie there.
    """

    host: Host
    address: str
    port: int
    root: PurePosixPath


Peers = Callable[[str], AbstractContextManager[Peer]]
"""Another host of the inventory by its name, open until the end of the block."""
