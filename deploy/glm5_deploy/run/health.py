"""Waiting for a server that may load for ten minutes: progress from its journal."""

from __future__ import annotations

import time
from dataclasses import dataclass

from glm5_deploy.config.models import Target
from glm5_deploy.errors import CommandTimeoutError, Glm5Error, UnreachableError
from glm5_deploy.hosts.command import Secret, script
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Events
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.journal import SAID, UnitState, parse_poll

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between looks: short at first, so that a small server is noticed at once."""
_LAST_LINES = 20

_POLL = f"""{SAID}
unit=$1 cursor=$2
state=$(systemctl show -p LoadState -p ActiveState -p SubState -p Result -p ExecMainStatus \\
  -p NRestarts -p InvocationID -p Job -- "$unit")
printf '%s\\n\\n' "$state"
run=$(printf '%s\\n' "$state" | sed -n 's/^InvocationID=//p')
said "$unit" "$run" "$cursor" | tail -n 400
"""


class UnhealthyError(Glm5Error):
    """The server failed, restarts in a loop, or did not become healthy in time.

    Args:
        lines: the end of its journal.
        hint: what to do where the journal shows no failure that we know.
    """

    def __init__(self, message: str, lines: tuple[str, ...], hint: str | None = None) -> None:
        from glm5_deploy.logs.explain import explain
        from glm5_deploy.logs.tail import telling

        known = explain(lines)
        if known:
            first = known[0]
            hint = f"{first.cause} {first.remedy}".strip()
        tail = "\n".join(f"    {line}" for line in telling(lines, _LAST_LINES))
        super().__init__(f"{message}\n{tail}" if tail else message, hint)
        self.lines = lines


def failure(properties: dict[str, str], restarts: int = 0) -> str | None:
    """Why a unit's state means that it will not become healthy, or None while it may.

    Args:
        restarts: how often it had been restarted before it was watched: systemd counts on for as
            long as the service is not started by hand.
    """
    active, sub = properties.get("ActiveState"), properties.get("SubState")
    status = properties.get("ExecMainStatus", "?")
    if properties.get("Job", "") not in ("", "0") and sub != "auto-restart":
        return None
    if properties.get("LoadState") == "not-found":
        return "the unit is gone"
    if sub == "auto-restart" or _restarts(properties) > restarts:
        return f"the server ended with status {status}"
    if active == "failed":
        return f"the unit failed ({properties.get('Result')}, status {status})"
    if active == "inactive":
        return f"the server ended with status {status}" if status != "0" else "the server stopped"
    return None


def earlier_still_runs(properties: dict[str, str]) -> bool:
    """Whether a restart is asked for and what answers, and logs, is still the server before it."""
    active, waiting = properties.get("ActiveState"), properties.get("Job", "") not in ("", "0")
    return waiting and active in {"active", "deactivating"}


def _restarts(properties: dict[str, str]) -> int:
    return int(properties.get("NRestarts") or 0)


@dataclass
class Watch:
    """Follows one service until it answers.

    Args:
        limit: seconds to wait at most.
    """

    host: Host
    target: Target
    events: Events
    cancel: Cancel
    limit: float

    def until_healthy(self, api_key: Secret | None, *, generate: bool = True) -> None:
        """Return once ``/health`` is 200 and, unless that is not asked for, a token was generated.

        Raises:
            UnhealthyError: with what the journal says about it.
            UnreachableError: the host went away and did not come back in time.
        """
        deadline = time.monotonic() + self.limit
        lines: list[str] = []
        pause = FIRST_PAUSE
        cursor = ""
        restarts: int | None = None
        while True:
            self.cancel.check()
            state = self._look(cursor, deadline)
            if earlier_still_runs(state.properties):
                self.events.progress(self.host.name, "waiting for the earlier server to stop")
                self.cancel.sleep(FIRST_PAUSE)
                continue
            count = _restarts(state.properties)
            restarts = count if restarts is None else min(restarts, count)
            cursor = state.cursor
            lines = [*lines, *state.lines][-400:]
            self._show(state.lines)
            why = failure(state.properties, restarts)
            if why is not None:
                more = f"`glm5-deploy logs --host {self.host.name} -n 200` shows more"
                raise UnhealthyError(f"{self.host.name}: {why}", tuple(lines), more)
            active = state.properties.get("ActiveState") == "active"
            if active and self._healthy() and (not generate or self._generates(api_key, deadline)):
                return
            if time.monotonic() > deadline:
                raise UnhealthyError(
                    f"{self.host.name}: not healthy within {self.limit:.0f} s",
                    tuple(lines),
                    "raise limits.load where it only needs longer; `glm5-deploy logs` shows all",
                )
            self.cancel.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)

    def _look(self, cursor: str, deadline: float) -> UnitState:
        """Poll once, waiting for a host that is away until the deadline."""
        noted = False
        while True:
            try:
                command = script(_POLL, self.target.profile.unit_name, cursor)
                return parse_poll(self.host.run(command, sudo=True, timeout=30).stdout, cursor)
            except (UnreachableError, CommandTimeoutError):
                self.cancel.check()
                if time.monotonic() > deadline:
                    raise
                if not noted:
                    self.events.note(self.host.name, "connection lost while waiting; reconnecting")
                    noted = True
                self.cancel.sleep(2)

    def _show(self, lines: tuple[str, ...]) -> None:
        from glm5_deploy.logs.progress import parse_progress

        for line in lines:
            said = parse_progress(line)
            if said is not None:
                self.events.progress(self.host.name, *said)

    def _healthy(self) -> bool:
        from glm5_deploy.smoke.health import health

        serve = self.target.profile.serve
        return health(self.host, serve.host, serve.port) == 200

    def _generates(self, api_key: Secret | None, deadline: float) -> bool:
        """Health alone is not enough: a model can be listed before it can generate."""
        from glm5_deploy.smoke.api import AnswerError, Api
        from glm5_deploy.smoke.transport import client_for

        with client_for(self.host, self.target, api_key) as client:
            api = Api(client, self.target.profile.served_model_name, deadline, request_timeout=60)
            try:
                api.complete("1", 1)
            except AnswerError as error:
                self.events.progress(self.host.name, f"healthy, but cannot generate yet: {error}")
                return False
        return True
