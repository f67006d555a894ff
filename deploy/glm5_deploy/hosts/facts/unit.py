"""Facts about a systemd unit."""

from __future__ import annotations

from dataclasses import dataclass

from glm5_deploy.config.numbers import natural
from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "MainPID")


@dataclass(frozen=True)
class UnitFacts:
    """A unit as systemd sees it.

    Args:
        load_state: ``not-found`` where there is no such unit; empty where systemd does not answer.
        enabled: systemd's UnitFileState: ``enabled``, ``disabled``, ``static``, … or empty.
        main_pid: 0 where nothing runs.
    """

    load_state: str
    active_state: str
    enabled: str
    main_pid: int

    @property
    def active(self) -> bool:
        return self.active_state == "active"


def unit_fact(unit: str, name: str | None = None) -> Fact[UnitFacts]:
    """State of a unit.

    Args:
        unit: with its suffix.
        name: the fact's name; default: ``unit:UNIT``.
    """
    show = command("systemctl", "show", "--property", ",".join(PROPERTIES), "--", unit)
    return Fact(name or f"unit:{unit}", show, parse_unit)


def parse_unit(output: FactOutput) -> UnitFacts:
    """Read ``systemctl show``; properties that an old systemd lacks get empty values."""
    values = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    return UnitFacts(
        load_state=values.get("LoadState", ""),
        active_state=values.get("ActiveState", ""),
        enabled=values.get("UnitFileState", ""),
        main_pid=natural(values.get("MainPID", "")) or 0,
    )
