"""Whether the login user may read the journal, and what kind of journal the host keeps."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.host import Host

_PROBE = r"""
if [ "$(id -u)" = 0 ]; then echo root; else id -nG; fi
if [ -d /var/log/journal ]; then echo persistent; else echo volatile; fi
systemctl show --property=LoadState --value -- "$1" 2>/dev/null || echo unknown
"""

_READERS = {"root", "systemd-journal", "adm", "wheel"}


@dataclass(frozen=True)
class Access:
    """How to read a unit's journal on a host.

    Args:
        sudo: the login user is in no group that may read it.
        persistent: it survives a reboot.
        unit_known: systemd has the unit.
    """

    sudo: bool
    persistent: bool
    unit_known: bool


def probe(host: Host, unit: str) -> Access:
    """Ask the host, in one round trip."""
    return parse_access(host.run(script(_PROBE, unit), timeout=30.0).stdout)


def parse_access(text: str) -> Access:
    """Read what the probe printed: groups, kind of journal, state of the unit."""
    groups, kind, state, *_ = [*text.splitlines(), "", "", ""]
    return Access(
        sudo=not _READERS.intersection(groups.split()),
        persistent=kind.strip() == "persistent",
        unit_known=state.strip() not in ("not-found", "unknown", ""),
    )
