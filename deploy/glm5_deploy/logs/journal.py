"""What to ask of journalctl, and its answer as values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.command import Command, command

PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_FIELDS = "MESSAGE,PRIORITY"


@dataclass(frozen=True)
class Query:
    """Which entries.

    Args:
        lines: the last so many; None: all.
        since: as journalctl reads it: ``1 hour ago``, ``today``, ``2026-11-29 18:00``.
        grep: a regular expression; without capitals it ignores case.
        priority: a name or number, or a range ``FROM..TO``.
    """

    lines: int | None = 100
    since: str | None = None
    until: str | None = None
    grep: str | None = None
    priority: str | None = None
    follow: bool = False

    def check(self) -> None:
        """Refuse what journalctl would refuse on every host.

        Raises:
            UsageError: a bad expression, an unknown priority, or a sense that there cannot be.
        """
        if self.grep is not None:
            _check_pattern(self.grep)
        if self.priority is not None:
            _check_priority(self.priority)
        if self.follow and self.until is not None:
            raise UsageError("--until makes no sense with --follow")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--grep {pattern}: {error}",
            "a dot, bracket or star that is meant as such: \\. \\[ \\*",
        ) from error


def _check_priority(text: str) -> None:
    known = (*PRIORITIES, *(str(number) for number in range(8)))
    if not all(part in known for part in text.split("..", 1)):
        raise UsageError(f"--priority {text} is unknown", f"one of {', '.join(PRIORITIES)}, or 0-7")


def journal_command(unit: str, query: Query, after_cursor: str | None = None) -> Command:
    """journalctl for one unit, one JSON object a line.

    Args:
        after_cursor: go on behind this entry; replaces the number of lines and `Query.since`.
    """
    arguments = [
        f"--unit={unit}", "--output=json", f"--output-fields={_FIELDS}", "--all", "--no-pager",
    ]  # fmt: skip
    if after_cursor is not None:
        arguments.append(f"--after-cursor={after_cursor}")
    else:
        arguments += [f"--since={query.since}"] if query.since else []
        arguments.append(f"--lines={'all' if query.lines is None else query.lines}")
    arguments += [f"--until={query.until}"] if query.until else []
    arguments += [f"--grep={query.grep}"] if query.grep else []
    arguments += [f"--priority={query.priority}"] if query.priority else []
    arguments += ["--follow"] if query.follow else []
    return command("journalctl", *arguments)


@dataclass(frozen=True)
class Entry:
    """One message.

    Args:
        time: seconds since the epoch, by the host's clock.
        priority: 0 (emergency) to 7 (debug), where the entry has one.
        cursor: names the entry in the host's journal.
    """

    host: str
    time: float
    message: str
    priority: int | None
    cursor: str

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "time": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds"),
            "priority": None if self.priority is None else PRIORITIES[self.priority],
            "message": self.message,
            "cursor": self.cursor,
        }


def parse_entry(host: str, line: str) -> Entry | None:
    """One line of ``--output=json``; None where it is something else (a notice, a cut line)."""
    try:
        found = json.loads(line)
        stamp = int(found["__REALTIME_TIMESTAMP"]) / 1e6
        cursor = str(found["__CURSOR"])
    except (ValueError, KeyError, TypeError):
        return None
    return Entry(host, stamp, _text(found.get("MESSAGE")), _priority(found), cursor)


def _priority(found: dict[str, Any]) -> int | None:
    text = str(found.get("PRIORITY", ""))
    return int(text) if text in {"0", "1", "2", "3", "4", "5", "6", "7"} else None


def _text(value: object) -> str:
    """A message: text, an array of bytes where it is no clean text, null where it is too large.

    A bar that was redrawn with carriage returns keeps its last state.
    """
    if value is None:
        return "(a message too large to show)"
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        text = bytes(item & 0xFF for item in value).decode("utf-8", errors="replace")
    elif isinstance(value, list):
        text = "\n".join(_text(item) for item in value)
    else:
        text = str(value)
    return "\n".join(last_state(line) for line in text.split("\n"))


def last_state(line: str) -> str:
    """A line that was redrawn with carriage returns, as it looked at the end."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")
