"""One look at a host: a round trip for the unit and the GPUs, then the server's own word."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from glm5_deploy.config.models import Target
from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import ExitCode
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.outcome import ErrorReport, HostOutcome, Status
from glm5_deploy.status.metrics import Load, parse_load, rate

_MARK = "--glm5--"
_PROBE = r"""
readlink -- "$2/current"; echo --glm5--
systemctl show -p LoadState -p ActiveState -p SubState -p NRestarts \
  -p ActiveEnterTimestampMonotonic -- "$1"
echo --glm5--
cat /proc/uptime; echo --glm5--
command -v nvidia-smi >/dev/null && nvidia-smi \
  --query-gpu=index,name,memory.used,memory.total,utilization.gpu --format=csv,noheader,nounits
exit 0
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in MiB, use in percent. None where the driver does not say."""

    index: int
    name: str
    used: int | None
    total: int | None
    utilization: int | None


@dataclass(frozen=True)
class Snapshot:
    """How a server is at one moment.

    Args:
        active, sub: the unit's state by systemd.
        uptime: seconds since the unit became active.
        health: the HTTP status of /health; None where nothing answers.
        rate: tokens a second since the sample before.
    """

    release: str | None = None
    known: bool = False
    active: str = "unknown"
    sub: str = ""
    restarts: int = 0
    uptime: float | None = None
    health: int | None = None
    model: str = ""
    gpus: tuple[Gpu, ...] = ()
    load: Load | None = None
    rate: float | None = None

    @property
    def well(self) -> bool:
        return self.active == "active" and self.health == 200

    def to_json(self) -> dict[str, Any]:
        return {
            "unit": {
                "active": self.active,
                "sub": self.sub,
                "restarts": self.restarts,
                "uptime_seconds": None if self.uptime is None else round(self.uptime, 1),
            },
            "health": self.health,
            "model": self.model,
            "gpus": [
                {
                    "index": gpu.index,
                    "name": gpu.name,
                    "memory_used_mib": gpu.used,
                    "memory_total_mib": gpu.total,
                    "utilization_percent": gpu.utilization,
                }
                for gpu in self.gpus
            ],
            "requests_running": None if self.load is None else self.load.running,
            "requests_waiting": None if self.load is None else self.load.waiting,
            "tokens_per_second": None if self.rate is None else round(self.rate, 1),
        }


def look(host: Host, target: Target, before: Load | None = None, pause: float = 1.0) -> Snapshot:
    """See how the target's server is.

    Args:
        before: an earlier sample, for the rate; without one a busy server is sampled twice.
        pause: seconds between those two.

    Raises:
        UnreachableError: the host is away.
    """
    from glm5_deploy.smoke.health import health

    profile = target.profile
    text = host.run(script(_PROBE, profile.unit_name, target.root), timeout=30.0).stdout
    snapshot = replace(parse_probe(text), model=profile.served_model_name)
    if snapshot.active not in ("active", "deactivating"):
        return snapshot
    answer = health(host, profile.serve.host, profile.serve.port)
    if answer is None:
        return snapshot
    load = read_load(host, target)
    if before is None and load is not None and load.running:
        time.sleep(pause)
        before, load = load, read_load(host, target)
    idle = load is not None and before is None
    return replace(snapshot, health=answer, load=load, rate=0.0 if idle else rate(before, load))


def read_load(host: Host, target: Target) -> Load | None:
    """What the server says of its load; None where it does not."""
    import httpx

    from glm5_deploy.smoke.transport import client_for

    with client_for(host, target, None) as client:
        try:
            response = client.get("/metrics", timeout=5.0)
        except httpx.HTTPError:
            return None
    if response.status_code != 200:
        return None
    # The format is UTF-8, whatever charset something else there claims.
    text = response.content.decode("utf-8", errors="replace")
    return parse_load(text, time.monotonic())


def parse_probe(text: str) -> Snapshot:
    """Read what the probe printed."""
    link, unit, uptime, gpus, *_ = [*text.split(f"{_MARK}\n"), "", "", "", ""]
    properties = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    active = properties.get("ActiveState", "unknown")
    return Snapshot(
        release=link.strip().rstrip("/").rpartition("/")[2] or None,
        known=properties.get("LoadState", "not-found") != "not-found",
        active=active,
        sub=properties.get("SubState", ""),
        restarts=_integer(properties.get("NRestarts", "")) or 0,
        uptime=_uptime(properties, uptime) if active == "active" else None,
        gpus=tuple(gpu for line in gpus.splitlines() if (gpu := parse_gpu(line))),
    )


def _uptime(properties: dict[str, str], machine: str) -> float | None:
    since = _integer(properties.get("ActiveEnterTimestampMonotonic", ""))
    words = machine.split()
    if not since or not words:
        return None
    return max(0.0, float(words[0]) - since / 1e6)


def parse_gpu(line: str) -> Gpu | None:
    """A row of nvidia-smi's CSV; None where it is an error message."""
    fields = [field.strip() for field in line.split(",")]
    index = _integer(fields[0])
    if len(fields) != 5 or index is None:
        return None
    used, total, use = (_integer(field) for field in fields[2:])
    return Gpu(index, fields[1], used, total, use)


def _integer(text: str) -> int | None:
    return natural(text.strip())


def outcome(name: str, snapshot: Snapshot, seconds: float = 0.0) -> HostOutcome:
    """A snapshot as a host's row of the report."""
    status: Status = "unchanged" if snapshot.well else "failed"
    error = None if snapshot.well else ErrorReport(_trouble(snapshot), _hint(name, snapshot))
    return HostOutcome(
        name, status, release=snapshot.release, seconds=seconds, error=error,
        data=snapshot.to_json() | {"ok": snapshot.well},
    )  # fmt: skip


def unreachable(name: str, message: str, hint: str | None) -> HostOutcome:
    """The row of a host that is away."""
    return HostOutcome(
        name, "unreachable", error=ErrorReport(message, hint, ExitCode.UNREACHABLE),
        data={"ok": False},
    )  # fmt: skip


def _trouble(snapshot: Snapshot) -> str:
    if not snapshot.known:
        return "not deployed: there is no unit"
    if snapshot.active == "inactive":
        return "stopped"
    if snapshot.active != "active":
        return f"the unit is {snapshot.active} ({snapshot.sub})"
    if snapshot.health is None:
        return "the unit runs, but nothing answers /health yet"
    return f"/health answers {snapshot.health}"


def _hint(name: str, snapshot: Snapshot) -> str:
    if not snapshot.known or snapshot.active == "inactive":
        return f"glm5-deploy up --host {name}"
    return f"glm5-deploy logs --host {name} --explain"
