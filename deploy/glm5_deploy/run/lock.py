"""One run at a time on a host: a lease in ROOT/state/lock, renewed over the connection while the
run lives.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import Glm5Error, LockHeldError
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.host import Host, Result
from glm5_deploy.hosts.remedies import known_remedy

LEASE_SECONDS = 60
RENEW_SECONDS = 15

# $1 state folder, $2 our token, $3 lease in seconds, $4 our record, $5 a token that may be taken
# over.
_ACQUIRE = """
set -e
mkdir -p -m 755 -- "$1"; lock=$1/lock
exec 9>"$1/.lock.guard"; flock 9
now=$(date +%s)
if [ -s "$lock" ]; then
  read -r token until < "$lock" || :
  case $until in ''|*[!0-9]*) until=0 ;; esac  # torn: nobody can hold it
  if [ "$token" != "$2" ]; then
    echo "$((until - now))"; cat -- "$lock"
    if [ "$until" -gt "$now" ] && [ "$token" != "$5" ]; then exit 75; fi
  fi
fi
printf '%s %s\\n%s\\n' "$2" "$((now + $3))" "$4" > "$lock.new"; mv -f -- "$lock.new" "$lock"
"""
_RENEW = """
lock=$1/lock
exec 9>"$1/.lock.guard"; flock 9
[ -s "$lock" ] || exit 76
read -r token until < "$lock" || :; [ "$token" = "$2" ] || exit 76
{ printf '%s %s\\n' "$token" "$(($(date +%s) + $3))"; tail -n +2 -- "$lock"; } > "$lock.new"
mv -f -- "$lock.new" "$lock"
"""
_RELEASE = """
lock=$1/lock
[ -s "$lock" ] || exit 0
exec 9>"$1/.lock.guard"; flock 9
read -r token until < "$lock" || :; [ "$token" != "$2" ] || rm -f -- "$lock"
"""
_BREAK = """
lock=$1/lock
[ -s "$lock" ] || exit 0
exec 9>"$1/.lock.guard"; flock 9
cat -- "$lock"; rm -f -- "$lock"
"""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as written in it."""

    token: str
    seconds_left: int
    record: dict[str, Any]

    def __str__(self) -> str:
        record, since = self.record, self.record.get("since")
        known = isinstance(since, int | float)
        at = time.strftime("%H:%M:%S", time.localtime(since)) if known else "?"
        who = f"{record.get('user', '?')}@{record.get('machine', '?')}"
        return f"{who} (process {record.get('pid', '?')}, since {at}: {record.get('reason', '?')})"

    def is_dead_here(self) -> bool:
        """Whether it was a process of this machine that no longer runs."""
        if self.record.get("machine") != socket.gethostname():
            return False
        if self.record.get("boot") != _boot():
            return self.record.get("boot") is not None
        pid = self.record.get("pid")
        return isinstance(pid, int) and _started(pid) != self.record.get("started")


def _boot() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None where it does not run (or there is no
    /proc).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def operator() -> str:
    """Who runs this program, for locks and audit logs."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _record(reason: str) -> str:
    user, _, machine = operator().partition("@")
    return json.dumps(
        {
            "user": user,
            "machine": machine,
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "boot": _boot(),
            "since": time.time(),
            "reason": reason,
        }
    )


def parse_holder(output: str) -> Holder | None:
    """What the acquiring script printed: seconds left, then the lock file."""
    lines = output.splitlines()
    if len(lines) < 2:
        return None
    try:
        record = json.loads(lines[2]) if len(lines) > 2 else {}
    except ValueError:
        record = {}
    record = record if isinstance(record, dict) else {}
    left = natural(lines[0].removeprefix("-")) or 0
    left = -left if lines[0].startswith("-") else left
    return Holder(lines[1].partition(" ")[0], left, record)


class Lease:
    """A held lock. `check` tells whether it is still ours."""

    def __init__(self, host: Host, state: PurePosixPath, token: str) -> None:
        self._host, self._state, self._token = host, state, token
        self._stop, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_SECONDS) and not self._lost.is_set():
            # A connection that comes back renews the lease; if it expired meanwhile, somebody may
            # have taken it.
            with contextlib.suppress(Glm5Error):
                self.renew()

    def renew(self) -> None:
        """Ask the host now whether the lock is still ours, and keep it for longer.

        Raises:
            LockHeldError: somebody broke it or took it over.
        """
        command = script(_RENEW, self._state, self._token, LEASE_SECONDS)
        if self._host.run(command, sudo=True, timeout=30, check=False).returncode == 76:
            self._lost.set()
        self.check()

    def check(self) -> None:
        """Raise where somebody broke the lock or took it over.

        Raises:
            LockHeldError: it is no longer ours.
        """
        if self._lost.is_set():
            raise LockHeldError(
                f"{self._host.name}: the lock was broken by somebody else: stopping here",
                "`glm5-deploy audit` on that host tells who; run it again when they are done",
            )

    def release(self) -> None:
        """Give the lock back; one that is no longer ours is left alone."""
        self._stop.set()
        try:
            self._host.run(
                script(_RELEASE, self._state, self._token), sudo=True, timeout=15, check=False
            )
        except Glm5Error:
            return


def acquire(host: Host, state: PurePosixPath, reason: str) -> tuple[Lease, Holder | None]:
    """Take the host's lock; an expired one, or one of a dead process of this machine, is taken
    over.

    Returns:
        The lease, and whom it was taken from where it was not free.

    Raises:
        LockHeldError: somebody else holds it: who, since when, why, and how long the lease still
        runs.
    """
    token, record = secrets.token_hex(8), _record(reason)
    result = _try(host, state, token, record, "")
    holder = parse_holder(result.stdout)
    if result.returncode == 75 and holder is not None and holder.is_dead_here():
        result = _try(host, state, token, record, holder.token)
    if result.returncode == 75:
        raise LockHeldError(
            f"{host.name}: locked by {holder}; the lease runs out in "
            f"{holder.seconds_left if holder else '?'} s unless it is renewed",
            f"wait for that run, or break its lock with `glm5-deploy unlock --host {host.name}`",
        )
    if result.returncode != 0:
        said = result.stderr.strip()
        hint = known_remedy(said) or f"root must be able to write in {state}, with flock there"
        raise LockHeldError(f"{host.name}: cannot take the lock: {said}", hint)
    return Lease(host, state, token), holder


def _try(host: Host, state: PurePosixPath, token: str, record: str, taken: str) -> Result:
    return host.run(
        script(_ACQUIRE, state, token, LEASE_SECONDS, record, taken),
        sudo=True,
        timeout=30,
        check=False,
    )


def break_lock(host: Host, state: PurePosixPath) -> Holder | None:
    """Remove whatever lock there is and say whose it was."""
    result = host.run(script(_BREAK, state), sudo=True, timeout=30)
    return parse_holder("0\n" + result.stdout) if result.stdout.strip() else None


@contextmanager
def locked(host: Host, state: PurePosixPath, reason: str) -> Iterator[tuple[Lease, Holder | None]]:
    """Hold the lock for a block of code and give it back however that ends."""
    lease, taken_from = acquire(host, state, reason)
    try:
        yield lease, taken_from
    finally:
        lease.release()
