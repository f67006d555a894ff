"""Trying again after a failure that may pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
"""Seconds; each wait is twice the one before."""


def retrying(
    action: Callable[[], T],
    *,
    attempts: int,
    transient: Callable[[Exception], bool],
    cancelled: threading.Event,
    wait: float = FIRST_WAIT,
) -> T:
    """Call until it succeeds, `attempts` times at most.

    A library's retry loop sleeps; this one waits on an event, so that closing a host ends it at
    once.

    Raises:
        Exception: the last failure, the first that is not transient, or the one before `cancelled`.
    """
    for number in range(1, attempts + 1):
        try:
            return action()
        except Exception as error:
            if number == attempts or not transient(error):
                raise
            if cancelled.wait(min(wait * 2 ** (number - 1), LONGEST_WAIT)):
                raise
    raise ValueError("attempts must be at least 1")
