"""What a run says while it runs; a screen, a log or a test listens."""

from __future__ import annotations

from typing import Protocol

from glm5_deploy.report.outcome import ChangeReport, Check, HostOutcome


class Events(Protocol):
    """Called from the worker threads of a run; implementations must be thread-safe."""

    def stage(self, host: str, stage: str) -> None:
        """A stage begins on a host."""

    def change(self, host: str, change: ChangeReport) -> None:
        """A change was applied."""

    def progress(self, host: str, text: str, fraction: float | None = None) -> None:
        """Where a long step stands; may be called many times a second."""

    def note(self, host: str, text: str) -> None:
        """Something worth a line that stays: a warning, a takeover, a wait."""

    def check(self, host: str, check: Check) -> None:
        """A preflight or smoke check has ended."""

    def finished(self, outcome: HostOutcome) -> None:
        """A host is through."""


class Silent:
    """Events that nobody listens to."""

    def stage(self, host: str, stage: str) -> None: ...
    def change(self, host: str, change: ChangeReport) -> None: ...
    def progress(self, host: str, text: str, fraction: float | None = None) -> None: ...
    def note(self, host: str, text: str) -> None: ...
    def check(self, host: str, check: Check) -> None: ...
    def finished(self, outcome: HostOutcome) -> None: ...


class WithoutChecks(Silent):
    """Passes on where a host stands, and keeps check rows back for a table at the end."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def stage(self, host: str, stage: str) -> None:
        self._events.stage(host, stage)

    def progress(self, host: str, text: str, fraction: float | None = None) -> None:
        self._events.progress(host, text, fraction)

    def note(self, host: str, text: str) -> None:
        self._events.note(host, text)
