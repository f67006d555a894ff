"""One host's entries, all at once or as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from glm5_deploy.config.models import Target
from glm5_deploy.errors import SudoRefusedError, UnreachableError, UsageError
from glm5_deploy.hosts.host import Host, Line
from glm5_deploy.logs.access import Access, probe
from glm5_deploy.logs.journal import Entry, Query, journal_command, parse_entry

_BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)
# What journalctl says of a wrong question, on every host alike.
_WRONG_QUERY = ("Failed to parse timestamp", "Bad pattern", "Failed to compile")
_TIMES = '--since and --until take "1 hour ago", today, yesterday, 18:00 or "2026-11-29 18:00"'
# What it says of itself and its reader; said better by `Access`.
_CHATTER = ("Hint: ", "Users in ", "Pass -q", "-- ", "Failed to determine whether")

Say = Callable[[str], None]
Emit = Callable[[Entry], None]


@dataclass
class Journal:
    """The journal of one target's unit.

    Args:
        say: called with remarks for the user.
        stop: set when the user has seen enough.
    """

    host: Host
    target: Target
    query: Query
    say: Say
    stop: threading.Event = field(default_factory=threading.Event)
    cursor: str | None = None
    connected: bool = False

    def read(self) -> list[Entry]:
        """All entries that are asked for, oldest first; says so where there are none.

        Raises:
            UnreachableError, SudoRefusedError: it cannot be read.
            UsageError: journalctl refuses the question.
        """
        access = self._access()
        entries = sorted(self._entries(access), key=lambda entry: entry.time)
        if not entries:
            self.say(_nothing(self.target.profile.unit_name, access))
        return entries

    def follow(self, emit: Emit) -> None:
        """Emit entries until `stop` is set; a connection that breaks is made again.

        Raises:
            UnreachableError: at the first attempt only.
            SudoRefusedError: it cannot be read.
        """
        attempt = 0
        while not self.stop.is_set():
            before = self.cursor
            try:
                access = self._access()
                if not access.unit_known and not self.connected:
                    self.say(_nothing(self.target.profile.unit_name, access))
                self.connected = True
                for entry in self._entries(access):
                    emit(entry)
            except UnreachableError as error:
                if self.stop.is_set():
                    return
                if not self.connected:
                    raise
                reason = error.message.partition(" during: ")[0]
                self.say(f"connection lost, connecting again ({reason})")
            attempt = attempt + 1 if self.cursor == before else 0
            self.stop.wait(_BACKOFF[min(attempt, len(_BACKOFF) - 1)])

    def _access(self) -> Access:
        access = probe(self.host, self.target.profile.unit_name)
        if access.sudo and not self.connected:
            self.say(
                f"{self.host.login_user} is not in the group systemd-journal: reading with sudo"
            )
        return access

    def _entries(self, access: Access) -> Iterator[Entry]:
        question = journal_command(self.target.profile.unit_name, self.query, self.cursor)
        try:
            with self.host.stream(question, sudo=access.sudo) as lines:
                yield from self._parsed(lines)
        except SudoRefusedError as error:
            raise SudoRefusedError(
                f"{error.message}; and {self.host.login_user} may not read the journal without it",
                f"on the host: usermod --append --groups systemd-journal {self.host.login_user}",
            ) from error

    def _parsed(self, lines: Iterator[Line]) -> Iterator[Entry]:
        for line in lines:
            if self.stop.is_set():
                return
            if line.stream == "stderr":
                self._remark(line.text)
            elif (entry := parse_entry(self.host.name, line.text)) is not None:
                self.cursor = entry.cursor
                yield entry

    def _remark(self, text: str) -> None:
        if any(part in text for part in _WRONG_QUERY):
            raise UsageError(f"{self.host.name}: {text}", _TIMES if "timestamp" in text else None)
        if text.strip() and not text.startswith(_CHATTER):
            self.say(text)


def _nothing(unit: str, access: Access) -> str:
    if not access.unit_known:
        return f"no entries: there is no unit {unit} here (`glm5-deploy up` makes it)"
    if not access.persistent:
        return "no entries: the journal is kept in memory and starts at the last boot"
    return f"no entries of {unit} that match"
