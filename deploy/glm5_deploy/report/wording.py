"""What a host's status is called after a command that changes nothing; JSON has one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from glm5_deploy.report.outcome import HostOutcome

_READ: Mapping[str, str] = {"unchanged": "done", "changed": "done"}
_WORDS: Mapping[str, Mapping[str, str]] = {
    "plan": {"changed": "would change"},
    "smoke": {"unchanged": "passed"},
    "bench": {"unchanged": "measured"},
    "preflight": {"unchanged": "ready"},
    "status": {"unchanged": "well"},
    "releases": _READ,
    "audit": _READ,
    "unlock": _READ,
}


def shown_status(command: str, outcome: HostOutcome) -> str:
    """The status as people read it."""
    return _WORDS.get(command, {}).get(outcome.status, outcome.status)


def prints_all(command: str) -> bool:
    """Whether a command's own lines say everything, so that a table would be noise."""
    return _WORDS.get(command) is _READ


def counts_changes(command: str) -> bool:
    """Whether the number of changes says something after this command."""
    return command not in _WORDS or command == "plan"


def change_count(command: str, outcome: HostOutcome) -> str:
    """How many; a plan that was not made has no number."""
    number = len(outcome.changes)
    if command == "plan" and outcome.status not in ("changed", "unchanged"):
        return "–"
    return f"{number} change" if number == 1 else f"{number} changes"
