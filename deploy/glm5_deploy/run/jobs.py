"""Long commands on a host, in transient units: a lost connection does not end them, a second run
joins them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

from glm5_deploy.errors import (
    CommandFailedError,
    CommandTimeoutError,
    Glm5Error,
    UnreachableError,
)
from glm5_deploy.hosts.command import command, script, without
from glm5_deploy.hosts.host import Host, Progress
from glm5_deploy.hosts.remedies import known_remedy
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.journal import SAID, UnitState, parse_poll
from glm5_deploy.stages.change import Transient

RECONNECT_SECONDS = 120.0
_MARK = "PROGRESS "

# A transient unit starts with an empty environment: a machine's proxies and certificates are named
# in /etc/environment, which logins get too. What fails at once can fail its start: it was started,
# and the poll tells of its end.
_START = """
unit=$1.service limit=$2 user=$3 secrets=$4 variables=$5 collect=$6 spent=$7; shift 7
[ -z "$spent" ] || trap 'rm -f -- "$spent"' EXIT
case $(systemctl show -p ActiveState -p SubState --value -- "$unit" | tr '\\n' '/') in
  active/running/|activating/*) echo joined; exit 0 ;;
  inactive/dead/) ;;
  active/exited/)
    [ -z "$collect" ] || { echo collected; exit 0; }
    systemctl stop -- "$unit" 2>/dev/null ;;
  *) systemctl stop -- "$unit" 2>/dev/null; systemctl reset-failed -- "$unit" 2>/dev/null ;;
esac
before=@$(date +%s.%N)
systemd-run --quiet --unit="$unit" --service-type=exec --remain-after-exit \\
  -p "RuntimeMaxSec=$limit" -p KillMode=control-group -p EnvironmentFile=-/etc/environment \\
  ${user:+-p "User=$user"} ${variables:+-p "EnvironmentFile=$variables"} \\
  ${secrets:+-p "EnvironmentFile=$secrets"} \\
  -- "$@" || case $(systemctl show -p Result --value -- "$unit") in ''|success) exit 1 ;; esac
echo "started $before"
"""

# Waits up to a second for the end, so that short work is noticed at once and long work costs few
# round trips. Who joined looks too: what the other one stopped is read by the start that was seen.
_POLL = f"""{SAID}
unit=$1.service cursor=$2 seen=$3; n=0
while :; do
  state=$(systemctl show -p LoadState -p ActiveState -p SubState -p Result -p ExecMainStatus \\
    -p InvocationID -- "$unit")
  case $state in
    *SubState=running*|*ActiveState=activating*|*ActiveState=deactivating*) ;;
    *) journalctl --sync 2>/dev/null; break ;;
  esac
  n=$((n + 1)); [ "$n" -ge 10 ] && break; sleep 0.1
done
printf '%s\\n\\n' "$state"
run=$(printf '%s\\n' "$state" | sed -n 's/^InvocationID=//p')
run=${{run:-$seen}}
said "$unit" "$run" "$cursor"
"""

# A poll leaves everything as it is: one whose answer is lost is asked again.
_CLEAR = """
unit=$1.service run=$2
[ "$(systemctl show -p InvocationID --value -- "$unit")" = "$run" ] || exit 0
systemctl stop -- "$unit" 2>/dev/null
systemctl reset-failed -- "$unit" 2>/dev/null || :
"""

_END = """
systemctl stop -- "$1.service" 2>/dev/null
systemctl reset-failed -- "$1.service" 2>/dev/null || :
"""

_EARLIER = {
    "joined": "joined {}, which an earlier run started",
    "collected": "took what {} found, which an earlier run started",
}


def parse_progress(line: str) -> tuple[str, float | None] | None:
    """A line ``PROGRESS fraction text`` of our own programs; ``-`` is an unknown fraction."""
    if not line.startswith(_MARK):
        return None
    fraction, _, text = line.removeprefix(_MARK).partition(" ")
    try:
        return text, None if fraction == "-" else float(fraction)
    except ValueError:
        return None


def job_runs(host: Host, unit: str) -> bool:
    """Whether an earlier run's job of this name is at work: one that `run_job` would join."""
    look = command("systemctl", "show", "-p", "ActiveState,SubState", "--", f"{unit}.service")
    return parse_poll(host.run(look).stdout, "").running


def run_job(
    host: Host, job: Transient, *, cancel: Cancel, progress: Progress, note: Callable[[str], None]
) -> tuple[str, ...]:
    """Start a job or join the one that runs, follow it to its end and return its lines.

    Raises:
        CommandFailedError: it failed, or the host restarted meanwhile; with the end of what it
        said.
        CommandTimeoutError: it ran past its limit.
        UnreachableError: the host was away for longer than `RECONNECT_SECONDS`; the job goes on
        there.
    """
    # systemd expands $NAME in what systemd-run is given.
    words = tuple(word.replace("$", "$$") for word in job.command.words())
    user = "" if job.user in {None, "root"} else job.user
    files, collect = (job.secrets or "", job.variables or ""), "yes" if job.collect else ""
    spent = job.secrets if job.hidden else None
    start = script(_START, job.unit, job.limit, user or "", *files, collect, spent or "", *words)
    started, _, since = host.run(start, sudo=True).stdout.strip().partition(" ")
    if started in _EARLIER:
        note(_EARLIER[started].format(job.unit))
    return _follow(host, job, since, cancel, progress, note)


def _follow(
    host: Host,
    job: Transient,
    since: str,
    cancel: Cancel,
    progress: Progress,
    note: Callable[[str], None],
) -> tuple[str, ...]:
    lines: list[str] = []
    cursor, seen = since, ""
    while True:
        cancel.check()
        state = _look(host, job, cursor, seen, cancel, note)
        cursor, seen = state.cursor, state.properties.get("InvocationID") or seen
        for line in (without(job.hidden, each) for each in state.lines):
            said = parse_progress(line)
            if said is None:
                lines.append(line)
            progress(*(said or (line, None)))
        if state.over:
            break
    _clear(host, job, seen)
    _judge(job, state, lines)
    return tuple(lines)


def _clear(host: Host, job: Transient, seen: str) -> None:
    """Take an ended unit away, one that failed too. What fails here must not hide how it ended:
    the next start takes it away."""
    with suppress(Glm5Error):
        host.run(script(_CLEAR, job.unit, seen), sudo=True, timeout=30, check=False)


def end_job(host: Host, unit: str) -> None:
    """End a job that may still run, and leave nothing of its unit."""
    host.run(script(_END, unit), sudo=True, check=False)


def _look(
    host: Host,
    job: Transient,
    cursor: str,
    seen: str,
    cancel: Cancel,
    note: Callable[[str], None],
) -> UnitState:
    """Poll once, waiting for a host that is away."""
    until: float | None = None
    while True:
        try:
            result = host.run(script(_POLL, job.unit, cursor, seen), sudo=True, timeout=30)
            return parse_poll(result.stdout, cursor)
        except (UnreachableError, CommandTimeoutError) as error:
            cancel.check()
            if until is None:
                until = time.monotonic() + RECONNECT_SECONDS
                note("connection lost; the work goes on there; reconnecting")
            if time.monotonic() > until:
                raise UnreachableError(
                    f"{host.name}: {error.args[0]}; {job.unit} goes on there",
                    "run the same command again when the host is back: it joins the work",
                ) from error
            cancel.sleep(2)


def _judge(job: Transient, state: UnitState, lines: list[str]) -> None:
    if state.succeeded:
        return
    if state.properties.get("LoadState") == "not-found":
        raise CommandFailedError(
            f"{job.unit} is gone: the host restarted, or somebody stopped it",
            "run again: it starts anew",
        )
    tail = "\n".join(lines[-15:])
    if state.properties.get("Result") == "timeout":
        message = f"{job.unit} ran past its limit of {job.limit} s\n{tail}".rstrip()
        raise CommandTimeoutError(message, longer(job.unit))
    status = state.properties.get("ExecMainStatus", "?")
    message = f"{job.unit} failed with status {status}\n{tail}".rstrip()
    raise CommandFailedError(message, remedy(job.unit, tail))


_REMEDIES = (
    (
        "glm5-job-verify-",
        r"missing: |contents differ",
        "`glm5-deploy model sync` brings them again, where the profile says where they come from;"
        " else copy them there again",
    ),
    (
        "glm5-job-verify-",
        r"the manifest hashes to",
        "take the files that were meant, or sign these by their hash",
    ),
    (
        "glm5-job-venv-",
        r"[Hh]ash mismatch|Bad CRC|Failed to extract archive|[Ii]nvalid Zip",
        "a wheel is not what the lock names: `glm5-deploy wheelhouse LOCK --output FOLDER` fetches"
        " damaged ones again; without a wheelhouse, look at what the index gives",
    ),
    (
        "glm5-job-venv-",
        r"error sending request|Failed to fetch|dns error|Connection refused|timed out",
        "the host does not reach its package index: set index_url to one that it reaches, or carry"
        " the wheels there (`glm5-deploy wheelhouse`, and wheelhouse in the inventory)",
    ),
)
"""Of jobs whose name begins so: what they say, and what to do about it; the first that fits."""


_LIMITS = {
    "glm5-job-venv-": "limits.install",
    "glm5-job-copy-": "limits.sync",
    "glm5-job-fetch-": "limits.sync",
    "glm5-job-verify-": "limits.sync",
}
"""Of jobs whose name begins so: the profile's key."""


def longer(unit: str) -> str | None:
    """What to do about a job that ran past its limit; None where nothing sets that."""
    key = next((key for begin, key in _LIMITS.items() if unit.startswith(begin)), None)
    return None if key is None else f"raise {key} in the profile where it only needs longer"


def remedy(unit: str, said: str) -> str | None:
    """What to do about a job that failed, by its last words; None where they tell nothing."""
    fitting = (
        hint
        for begin, pattern, hint in _REMEDIES
        if unit.startswith(begin) and re.search(pattern, said)
    )
    return known_remedy(said) or next(fitting, None)
