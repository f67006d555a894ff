"""Facts about a systemd unit."""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass

from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "NRestarts",
    "Result",
    "ActiveEnterTimestamp",
    "ExecMainStatus",
    "ExecMainCode",
    "NeedDaemonReload",
    "FragmentPath",
    "StatusText",
    "InvocationID",
)


@dataclass(frozen=True)
class UnitFacts:
    """A unit as systemd sees it.

    Args:
        load_state: ``not-found`` where there is no such unit; empty where systemd does not answer.
        enabled: systemd's UnitFileState: ``enabled``, ``disabled``, ``static``, … or empty.
        main_pid: 0 where nothing runs.
        active_enter_timestamp: seconds since 1970; None where it was never active.
        invocation_id: changes with each start.
    """

    load_state: str
    active_state: str
    sub_state: str
    enabled: str
    main_pid: int
    n_restarts: int
    result: str
    active_enter_timestamp: float | None
    exec_main_status: int
    need_daemon_reload: bool
    fragment_path: str
    invocation_id: str

    @property
    def exists(self) -> bool:
        return self.load_state not in ("", "not-found")

    @property
    def active(self) -> bool:
        return self.active_state == "active"


def unit_fact(unit: str, name: str | None = None) -> Fact[UnitFacts]:
    """State of a unit.

    Args:
        unit: with its suffix.
        name: the fact's name; default: ``unit:UNIT``.
    """
    show = command(
        "systemctl", "show", "--property", ",".join(PROPERTIES), "--", unit, env={"TZ": "UTC"}
    )
    return Fact(name or f"unit:{unit}", show, parse_unit)


def parse_unit(output: FactOutput) -> UnitFacts:
    """Read ``systemctl show`` (times in UTC); properties that an old systemd lacks get empty
    values.
    """
    values = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    return UnitFacts(
        load_state=values.get("LoadState", ""),
        active_state=values.get("ActiveState", ""),
        sub_state=values.get("SubState", ""),
        enabled=values.get("UnitFileState", ""),
        main_pid=_number(values.get("MainPID", "")),
        n_restarts=_number(values.get("NRestarts", "")),
        result=values.get("Result", ""),
        active_enter_timestamp=parse_timestamp(values.get("ActiveEnterTimestamp", "")),
        exec_main_status=_number(values.get("ExecMainStatus", "")),
        need_daemon_reload=values.get("NeedDaemonReload", "") == "yes",
        fragment_path=values.get("FragmentPath", ""),
        invocation_id=values.get("InvocationID", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def parse_timestamp(text: str) -> float | None:
    """``Sun 2026-11-29 18:58:24 UTC`` as seconds since 1970; empty or ``n/a``: None."""
    words = text.split()
    if len(words) != 4:
        return None
    return float(calendar.timegm(time.strptime(f"{words[1]} {words[2]}", "%Y-%m-%d %H:%M:%S")))
