"""One piece of work on many hosts: in parallel, in rolling batches, and through Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace

from glm5_deploy.config.models import Target
from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import ExitCode, UsageError
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import ErrorReport, HostOutcome
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.session import guarded

Work = Callable[[Target], HostOutcome]


def batches(count: int, serial: str | None) -> list[int]:
    """Sizes of the rolling groups: all at once, N at a time, or P% of the hosts (at least one).

    Raises:
        UsageError: neither a positive number nor a percentage.
    """
    if serial is None or count == 0:
        return [count] if count else []
    text = serial.strip()
    number = natural(text.removesuffix("%"))
    if not number or (text.endswith("%") and number > 100):
        raise UsageError(
            f"--serial {serial}: a number of hosts or a percentage is wanted", "--serial 1"
        )
    size = max(1, count * number // 100) if text.endswith("%") else number
    return [min(size, count - start) for start in range(0, count, size)]


def fan_out(
    targets: Sequence[Target],
    work: Work,
    events: Events,
    cancel: Cancel,
    *,
    forks: int = 10,
    serial: str | None = None,
    max_failures: int = 0,
) -> tuple[HostOutcome, ...]:
    """Run `work` for every target and return the outcomes in the targets' order.

    Args:
        max_failures: how many hosts may fail before later batches are skipped.
    """
    outcomes: list[HostOutcome] = []
    remaining = list(targets)
    for size in batches(len(targets), serial):
        group, remaining = remaining[:size], remaining[size:]
        failures = sum(outcome.exit_code is not ExitCode.DONE for outcome in outcomes)
        if cancel.is_set or failures > max_failures:
            outcomes += [_passed_over(target, failures, cancel) for target in group]
            continue
        outcomes += _group(group, work, events, cancel, forks)
    return tuple(outcomes)


def _passed_over(target: Target, failures: int, cancel: Cancel) -> HostOutcome:
    if cancel.is_set:
        return HostOutcome(target.name, "interrupted")
    return HostOutcome(
        target.name, "skipped", error=ErrorReport(f"not tried: {failures} hosts before it failed")
    )


def _group(
    group: Sequence[Target], work: Work, events: Events, cancel: Cancel, forks: int
) -> list[HostOutcome]:
    def one(target: Target) -> HostOutcome:
        if cancel.is_set:
            return HostOutcome(target.name, "interrupted")
        outcome = guarded(target.name, lambda: work(target))
        if cancel.is_set and outcome.status == "unreachable" and not outcome.changes:
            outcome = replace(outcome, status="interrupted")
        events.finished(outcome)
        return outcome

    with _asked_to_stop(cancel), ThreadPoolExecutor(max(1, min(forks, len(group)))) as pool:
        futures = [pool.submit(one, target) for target in group]
        _wait(futures, events, cancel)
        return [future.result() for future in futures]


def _wait(futures: list[Future[HostOutcome]], events: Events, cancel: Cancel) -> None:
    """Wait for all, and say it once when they were asked to stop."""
    said = cancel.is_set
    while wait(futures, timeout=0.2).not_done:
        if not cancel.is_set:
            continue
        cancel.stop()
        if not said:
            said = True
            events.note("", "interrupted: cleaning up (Ctrl-C again to leave at once)")


@contextmanager
def _asked_to_stop(cancel: Cancel) -> Iterator[None]:
    """A first Ctrl-C or SIGTERM asks the workers to clean up, a second one leaves at once.

    A handler and no exception: one that came between two statements would end the wait, not the
    work. Signals that this program was told to ignore stay ignored.
    """

    def stop(_number: int, _frame: object) -> None:
        if cancel.is_set:
            os.write(2, b"left at once: locks expire and the hosts revert by themselves\n")
            os._exit(ExitCode.INTERRUPTED)
        cancel.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
