"""What is done to a deployment that exists: roll back, restart, take down. Each under the host's
lock.
"""

from __future__ import annotations

from dataclasses import replace

from glm5_deploy.config.models import Target
from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.command import Secret, command, script
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import ChangeReport, Check, HostOutcome
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.earlier import as_it_was
from glm5_deploy.run.health import Watch
from glm5_deploy.run.lock import locked
from glm5_deploy.run.steps import Executor
from glm5_deploy.run.transaction import Transaction, require_passed, smoke_rows
from glm5_deploy.stages.desired import Desired, Release
from glm5_deploy.stages.observed import Observed, Paths, observe
from glm5_deploy.stages.service import guard, switch_to
from glm5_deploy.stages.system import programs

_DEPLOY_FIRST = "deploy first: `glm5-deploy up`"

# Only what `up` makes is removed, by name: a root that was set wrongly loses nothing else.
_PURGE = """
root=$1 name=$2 models=$3
if [ -e "$root/lib/agent.py" ]; then
  rm -f -- "/etc/systemd/system/$name.service" "/etc/systemd/system/$name-confirm.service" \\
    "/etc/systemd/system/$name-confirm.timer"
  systemctl daemon-reload
  for name_of_ours in releases venvs cache python lib current previous; do
    rm -rf -- "$root/$name_of_ours"
  done
  rm -rf -- "/var/lib/$name" "/var/cache/$name" "$root/state"
  echo "$root"
fi
for manifest in "$root"/models/*/MANIFEST.sha256; do
  [ "$models" = yes ] && [ -e "$manifest" ] || continue
  rm -rf -- "${manifest%/*}"
  echo "${manifest%/*}"
done
rm -f -- "$root/state/lock" "$root/state/.lock.guard"
rmdir -- "$root/state" "$root/models" "$root" 2>/dev/null || :
"""
_DOWN = """
name=$1 root=$2
systemctl stop -- "$name-confirm.timer" 2>/dev/null || :
systemctl disable --quiet --now -- "$name.service" || exit 1
systemctl reset-failed -- "$name.service" 2>/dev/null || :
rm -f -- "$root/state/pending.json"
"""
_RESTART = 'systemctl reset-failed "$1" 2>/dev/null; systemctl restart --no-block "$1"'


class Maintenance:
    """One host that has a deployment.

    Args:
        desired: what the inventory says; its profile gives limits and smoke expectations.
    """

    def __init__(
        self, host: Host, desired: Desired, api_key: Secret | None, events: Events, cancel: Cancel
    ) -> None:
        self.host, self.desired, self.api_key = host, desired, api_key
        self.events, self.cancel = events, cancel
        self.paths = Paths.of(desired.target)

    def rollback(self, release: str | None) -> HostOutcome:
        """Switch to an earlier release, prove it and confirm; or come back.

        Raises:
            UsageError: there is no such release on the host, or nothing to go back to.
        """
        with locked(self.host, self.paths.state, "rollback"):
            observed = observe(self.host, self.desired.target)
            chosen = self._choose(release, observed)
            target = as_it_was(self.host, self.desired.target, chosen)
            desired = replace(self.desired, target=target, release=Release(chosen, ()))
            if target.profile.unit_name != self.paths.unit:
                observed = observe(self.host, target)
            change = switch_to(desired, observed, chosen)
            changes = [*programs(desired, observed), *guard(desired, observed), change]
            self.events.stage(self.host.name, "service")
            executor = Executor(self.host, self.events, self.cancel)
            transaction = Transaction(desired, observed, executor, self.api_key)
            checks = transaction.carry_out(changes)
        reports = tuple(change.report for change in changes)
        return HostOutcome(self.host.name, "changed", reports, release=chosen, checks=checks)

    def _choose(self, release: str | None, observed: Observed) -> str:
        deployed = observed.deployment
        # Where a switch is not confirmed yet, what was confirmed last is what it goes back to.
        pending = deployed.pending or {}
        previous = pending.get("previous") if pending else deployed.previous
        if release is None and previous is None:
            raise UsageError(f"{self.host.name}: no previous release", "see `glm5-deploy releases`")
        wanted = release or previous or ""
        found = [name for name in deployed.releases if name.startswith(wanted)]
        if len(found) != 1:
            there = ", ".join(deployed.releases) or "none"
            raise UsageError(f"{self.host.name}: no single release {wanted}", f"there are: {there}")
        if found[0] == deployed.current:
            message = f"{self.host.name}: {found[0]} is the current release already"
            raise UsageError(message, "see `glm5-deploy releases`")
        return found[0]

    def restart(self, *, smoke: bool) -> HostOutcome:
        """Restart the service and wait until it answers.

        Raises:
            UsageError: nothing is deployed here.
            UnhealthyError: it does not come back.
        """
        observed = observe(self.host, self.desired.target)
        if observed.unit.load_state != "loaded":
            raise UsageError(f"{self.host.name}: {self.paths.unit} is not there", _DEPLOY_FIRST)
        with locked(self.host, self.paths.state, "restart"):
            self.events.stage(self.host.name, "service")
            self.host.run(script(_RESTART, self.paths.unit), sudo=True)
            self.events.stage(self.host.name, "health")
            limit = self.desired.target.profile.limits.load
            Watch(self.host, self.desired.target, self.events, self.cancel, limit).until_healthy(
                self.api_key
            )
            checks: tuple[Check, ...] = ()
            if smoke:
                rows = smoke_rows(self.host, self.desired.target, self.events, self.api_key)
                checks = require_passed(self.host.name, rows)
        change = ChangeReport("service", "restart", self.paths.unit)
        return HostOutcome(self.host.name, "changed", (change,), checks=checks)


def take_down(
    host: Host, target: Target, events: Events, *, purge: bool, models: bool
) -> HostOutcome:
    """Stop and disable the service; with `purge` remove what `up` made, the models only where
    asked.

    Raises:
        Glm5Error: systemd refuses, or there is no deployment of ours.
    """
    paths = Paths.of(target)
    name = paths.unit.removesuffix(".service")
    observed = observe(host, target)
    incumbent = observed.deployment.incumbent
    present = observed.unit.load_state == "loaded"
    if not present and not purge and incumbent is None:
        return HostOutcome(host.name, "unchanged")
    changes: list[ChangeReport] = []
    with locked(host, paths.state, "down"):
        events.stage(host.name, "service")
        running = observed.unit.active_state not in {"inactive", "failed"}
        if present and (running or observed.unit.enabled == "enabled"):
            stop = target.profile.limits.stop + 60
            host.run(script(_DOWN, name, paths.root), sudo=True, timeout=stop)
            changes.append(ChangeReport("service", "stop", paths.unit))
        if incumbent is not None and incumbent.running:
            earlier = incumbent.unit.removesuffix(".service")
            stop = target.profile.limits.stop + 60
            host.run(script(_DOWN, earlier, paths.root), sudo=True, timeout=stop)
            changes.append(ChangeReport("service", "stop", incumbent.unit))
        if purge:
            changes += _purge(host, paths, name, models=models)
    return HostOutcome(host.name, "changed" if changes else "unchanged", tuple(changes))


def _purge(host: Host, paths: Paths, name: str, *, models: bool) -> list[ChangeReport]:
    """Remove what is ours; what was there is told, one line each."""
    timer = command("systemctl", "disable", "--quiet", "--now", paths.confirm_timer)
    host.run(timer, sudo=True, check=False)
    removed = host.run(
        script(_PURGE, paths.root, name, "yes" if models else "no"), sudo=True, timeout=600
    )
    return [ChangeReport("system", "remove", line) for line in removed.stdout.splitlines()]
