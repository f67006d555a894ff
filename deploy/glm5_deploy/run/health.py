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
_KEPT_LINES = 400
"""Of the journal, for what explains a failure; a look takes no more."""

_POLL = f"""{SAID}
unit=$1 cursor=$2
state=$(systemctl show -p LoadState -p ActiveState -p SubState -p Result -p ExecMainStatus \\
  -p NRestarts -p InvocationID -p Job -- "$unit")
printf '%s\\n\\n' "$state"
run=$(printf '%s\\n' "$state" | sed -n 's/^InvocationID=//p')
said "$unit" "$run" "$cursor" | tail -n {_KEPT_LINES}
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
class _Said:
    """What a server has said since it is watched, and how often it had been restarted by then."""

    lines: tuple[str, ...] = ()
    cursor: str = ""
    restarts: int | None = None

    def take(self, state: UnitState) -> None:
        count = _restarts(state.properties)
        self.restarts = count if self.restarts is None else min(self.restarts, count)
        self.cursor = state.cursor
        self.lines = (*self.lines, *state.lines)[-_KEPT_LINES:]


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
        said, pause = _Said(), FIRST_PAUSE
        while True:
            self.cancel.check()
            state = self._look(said.cursor, deadline)
            earlier = earlier_still_runs(state.properties)
            if earlier:
                self.events.progress(self.host.name, "waiting for the earlier server to stop")
            elif self._serves(state, said, api_key, deadline, generate=generate):
                return
            if time.monotonic() > deadline:
                raise self._late(said, earlier=earlier)
            self.cancel.sleep(pause)
            pause = FIRST_PAUSE if earlier else min(1.5 * pause, LONGEST_PAUSE)

    def _serves(
        self,
        state: UnitState,
        said: _Said,
        api_key: Secret | None,
        deadline: float,
        *,
        generate: bool,
    ) -> bool:
        """Whether the server answers by now.

        Raises:
            UnhealthyError: its state tells that it will not.
        """
        said.take(state)
        self._show(state.lines)
        why = failure(state.properties, said.restarts or 0)
        if why is not None:
            more = f"`glm5-deploy logs --host {self.host.name} -n 200` shows more"
            raise UnhealthyError(f"{self.host.name}: {why}", said.lines, more)
        if state.properties.get("ActiveState") != "active" or not self._healthy():
            return False
        return not generate or self._generates(api_key, deadline)

    def _late(self, said: _Said, *, earlier: bool) -> UnhealthyError:
        name, within = self.host.name, f"within {self.limit:.0f} s"
        if earlier:
            unit = self.target.profile.unit_name
            message = f"{name}: the earlier server has not stopped {within}"
            hint = f"`systemctl list-jobs` there tells what {unit} waits for; or raise limits.load"
            return UnhealthyError(message, said.lines, hint)
        hint = "raise limits.load where it only needs longer; `glm5-deploy logs` shows all"
        return UnhealthyError(f"{name}: not healthy {within}", said.lines, hint)

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
