"""Ctrl-C as a flag that workers look at between steps, so that each cleans up after itself."""

from __future__ import annotations

import threading

from glm5_deploy.errors import ExitCode, Glm5Error


class InterruptedRunError(Glm5Error):
    """The user pressed Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED


class Cancel:
    """Set once by the main thread; workers raise when they next look."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise where the run was interrupted.

        Raises:
            InterruptedRunError: it was.
        """
        if self._event.is_set():
            raise InterruptedRunError("interrupted")

    def sleep(self, seconds: float) -> None:
        """Wait, but not past an interruption."""
        if self._event.wait(seconds):
            self.check()
