"""The running service: the switch to a release, taken back unless it is confirmed."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace

from glm5_deploy.hosts.command import Command, command, script
from glm5_deploy.stages.change import Change, Put, Run, Step
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import UNIT_FOLDER, Observed
from glm5_deploy.stages.release import edited
from glm5_deploy.stages.system import python_path
from glm5_deploy.stages.templates import render

STAGE = "service"
COMPARED = ("unit", "environment")

_START = (
    'systemctl reset-failed "$1" 2>/dev/null; systemctl enable --quiet "$1" && '
    'systemctl start --no-block "$1"'
)


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """The guard that reverts, then the switch, or a start where only that is lacking."""
    return [*guard(desired, observed), *_service(desired, observed)]


def agent(desired: Desired, observed: Observed, *words: str) -> Command:
    """A call of the host's agent (onhost/agent.py)."""
    python = python_path(desired, observed)
    return command(python, desired.paths.agent, desired.paths.root, *words)


def confirm_within(desired: Desired) -> int:
    """Seconds that a switch may take: load and smoke test, and a minute for what lies between."""
    limits = desired.target.profile.limits
    return limits.load + limits.smoke + 60


def guard_files(desired: Desired, observed: Observed) -> dict[str, str]:
    """The units that take an unconfirmed switch back, by name."""
    paths = desired.paths
    name = paths.unit.removesuffix(".service")
    service = render(
        "confirm.service.j2",
        name=name,
        python=str(python_path(desired, observed)),
        agent=str(paths.agent),
        root=str(paths.root),
    )
    timer = render("confirm.timer.j2", name=name)
    return {paths.confirm_service: service, paths.confirm_timer: timer}


def guard(desired: Desired, observed: Observed) -> list[Change]:
    """What reverts an unconfirmed switch, where it is not in place."""
    timer = desired.paths.confirm_timer
    steps: list[Step] = [
        Put(UNIT_FOLDER / unit, text.encode())
        for unit, text in guard_files(desired, observed).items()
        if observed.deployment.file(UNIT_FOLDER / unit) != text
    ]
    if observed.timer.enabled != "enabled":
        # this reloads systemd too
        steps.append(Run(command("systemctl", "enable", "--quiet", timer)))
    elif steps:
        steps.append(Run(command("systemctl", "daemon-reload")))
    if not steps:
        return []
    return [Change(STAGE, "enable", timer, "reverts what is not confirmed", tuple(steps))]


def _service(desired: Desired, observed: Observed) -> list[Change]:
    deployed, release = observed.deployment, desired.release.identifier
    pending = (deployed.pending or {}).get("release")
    unit_text = deployed.file(desired.paths.unit_file)
    differs = unit_text != desired.release.text("unit") or edited(desired, observed)
    if deployed.current != release or differs:
        return [_switch(desired, observed)]
    if pending == release:
        step = Run(agent(desired, observed, "extend", str(confirm_within(desired))))
        return [Change(STAGE, "confirm", release, "switched earlier, not yet confirmed", (step,))]
    if pending is not None:
        return [_switch(desired, observed)]
    if observed.unit.active_state in {"inactive", "failed", "deactivating"}:
        step = Run(script(_START, desired.paths.unit))
        detail = f"it is {observed.unit.active_state}"
        return [Change(STAGE, "start", desired.paths.unit, detail, (step,), downtime=False)]
    if observed.unit.enabled != "enabled":
        step = Run(command("systemctl", "enable", "--quiet", desired.paths.unit))
        return [Change(STAGE, "enable", desired.paths.unit, "starts at boot", (step,))]
    return []


def _switch(desired: Desired, observed: Observed) -> Change:
    change = switch_to(desired, observed, desired.release.identifier)
    return replace(change, diff=release_diff(desired, observed))


def switch_to(desired: Desired, observed: Observed, release: str) -> Change:
    """The switch to a release that lies on the host, pending until it is confirmed."""
    order = {
        "release": release,
        "unit": desired.paths.unit,
        "confirm_within": confirm_within(desired),
        "by": desired.operator,
    }
    # A service of another name is stopped before the new one starts.
    limit = 300 + desired.target.profile.limits.stop
    step = Run(agent(desired, observed, "switch"), stdin=json.dumps(order).encode(), timeout=limit)
    incumbent = observed.deployment.incumbent
    running = observed.unit.active_state in {"active", "activating", "reloading"}
    running = running or (incumbent is not None and incumbent.running)
    before = observed.deployment.current
    return Change(
        STAGE,
        "switch",
        release,
        f"from {before}" if before else "first release here",
        (step,),
        downtime=running,
    )


def release_diff(desired: Desired, observed: Observed) -> str:
    """Unified diff of the current release's files and the new ones; secrets are in neither."""
    parts: list[str] = []
    for name in COMPARED:
        before = observed.deployment.file(desired.paths.current / name) or ""
        after = desired.release.text(name)
        parts += difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"{observed.deployment.current or 'nothing'}/{name}",
            f"{desired.release.identifier}/{name}",
        )
    return "".join(parts)
