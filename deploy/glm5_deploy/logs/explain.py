"""Known failures in log lines: what happened, why, and what to do. The table is `failures.yml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "symptom"]

_START = re.compile(r"Initializing a V\d+ LLM engine")
"""vLLM's first line of an engine."""
_STOPPING = re.compile(r"(?:^|\]: )Stopping \S+\.service\b")
_STOPPED = re.compile(r"(?:^|\]: )(?:Stopped|Starting|Started) \S+\.service\b")
"""systemd's lines about a unit."""


@dataclass(frozen=True)
class Failure:
    """One row of the table.

    Args:
        after: counts only once an earlier line of the same start has matched this.
        severity: a cause, something that may hurt later, or what follows from a cause.
        at_stop: a server that is stopped shows it, too; it does not count then.
    """

    name: str
    pattern: re.Pattern[str]
    severity: Severity
    cause: str
    remedy: str
    after: re.Pattern[str] | None = None
    at_stop: bool = False


@dataclass(frozen=True)
class Explanation:
    """A failure that was seen.

    Args:
        line: the first line that matched, whole.
        count: how many lines matched.
        first, last: when, in seconds since the epoch; None where the lines have no times.
    """

    name: str
    severity: Severity
    cause: str
    remedy: str
    line: str
    count: int = 1
    first: float | None = None
    last: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity,
            "cause": self.cause,
            "remedy": self.remedy,
            "line": self.line,
            "count": self.count,
        }


@functools.cache
def known_failures() -> tuple[Failure, ...]:
    """The table, in the order in which patterns are tried.

    Raises:
        ValueError: the package's own table is wrong; a test reads it.
    """
    import yaml

    text = (resources.files(__package__ or "glm5_deploy.logs") / "failures.yml").read_text("utf-8")
    return tuple(_failure(row) for row in yaml.safe_load(text))


def _failure(row: dict[str, Any]) -> Failure:
    severity = row["severity"]
    if severity not in get_args(Severity):
        raise ValueError(f"{row['name']}: unknown severity {severity}")
    after = row.get("after")
    return Failure(
        name=row["name"],
        pattern=re.compile(row["pattern"]),
        severity=severity,
        cause=row["cause"],
        remedy=row["remedy"],
        after=re.compile(after) if after else None,
        at_stop=bool(row.get("at_stop", False)),
    )


class Explainer:
    """Reads lines one after the other, so that a log can be explained while it is followed."""

    def __init__(self) -> None:
        self._seen_before: set[str] = set()
        self._found: dict[str, Explanation] = {}
        self._stopping = False

    def feed(self, line: str, at: float | None = None) -> Explanation | None:
        """The failure that this line names for the first time, or None.

        Args:
            at: when the line was written, in seconds since the epoch.
        """
        found = next((row for row in known_failures() if self._matches(row, line)), None)
        self._remember(line)
        if found is None:
            return None
        earlier = self._found.get(found.name)
        if earlier is not None:
            self._found[found.name] = replace(earlier, count=earlier.count + 1, last=at)
            return None
        new = Explanation(found.name, found.severity, found.cause, found.remedy, line, 1, at, at)
        self._found[found.name] = new
        return new

    def found(self) -> list[Explanation]:
        """All so far: causes first, then warnings, then symptoms; each in order of appearance."""
        order = get_args(Severity)
        return sorted(self._found.values(), key=lambda each: order.index(each.severity))

    def _matches(self, row: Failure, line: str) -> bool:
        if row.after is not None and row.name not in self._seen_before:
            return False
        if row.at_stop and self._stopping:
            return False
        return row.pattern.search(line) is not None

    def _remember(self, line: str) -> None:
        if _START.search(line):
            self._seen_before.clear()
        if _STOPPING.search(line) or _STOPPED.search(line):
            self._stopping = _STOPPED.search(line) is None
        for row in known_failures():
            if row.after is not None and row.after.search(line):
                self._seen_before.add(row.name)


def explain(lines: Iterable[str]) -> list[Explanation]:
    """Known failures among log lines, causes before symptoms; empty where none is known."""
    return explain_timed((line, None) for line in lines)


def explain_timed(lines: Iterable[tuple[str, float | None]]) -> list[Explanation]:
    """As `explain`, for lines with the times at which they were written."""
    explainer = Explainer()
    for line, at in lines:
        explainer.feed(line, at)
    return explainer.found()
