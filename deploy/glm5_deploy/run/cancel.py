"""Ctrl-C as a flag that workers look at between steps, so that each cleans up after itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

from glm5_deploy.errors import ExitCode, Glm5Error


class InterruptedRunError(Glm5Error):
    """The user pressed Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED


class Cancel:
    """Set once by the main thread; workers raise when they next look."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        self._event.set()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this once the run is interrupted, from another thread than the caller's."""
        self._callbacks.append(callback)

    def stop(self) -> None:
        """Interrupt, and end what waits in other ways than `sleep`. Not for signal handlers."""
        self._event.set()
        while self._callbacks:
            self._callbacks.pop()()

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
