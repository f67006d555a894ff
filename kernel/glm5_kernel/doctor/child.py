"""A process of its own for what may crash, hang or poison a CUDA context, and its answers.

    python -c "$PROGRAM" TASK [ARGUMENT…]

The answers are JSON, a line each, on what standard output was; all that libraries print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

PROGRAM = "import sys; from glm5_kernel.doctor.child import main; main(sys.argv[1:])"
"""With -m the interpreter would warn that the package imports this module before it runs it, and
that warning would be taken for the reason of a failure."""

Answer = dict[str, Any]
Emit = Callable[[Answer], None]


@dataclass(frozen=True)
class Ended:
    """What a child left.

    Attributes:
        answers: in order; those that came before a crash are there.
        returncode: negative for a signal; None where it was still running at the limit.
        said: its standard error.
    """

    answers: tuple[Answer, ...]
    returncode: int | None
    said: str

    def why(self) -> str:
        """In a line, how it came to its end."""
        if self.returncode is None:
            return "no answer in time"
        if self.returncode < 0:
            with suppress(ValueError):
                return f"the process was ended by {signal.Signals(-self.returncode).name}"
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        if not lines:
            return f"the process ended with status {self.returncode}"
        # What an exception says may have several lines, of which the first names it.
        named = [line for line in lines if _EXCEPTION.match(line)]
        # An exception's own name, without its module.
        return re.sub(r"^(?:\w+\.)+(?=\w+: )", "", (named or lines)[-1])


_EXCEPTION = re.compile(r"(?:\w+\.)*\w+(?:Error|Exception|Exit): ")
_lock = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()
_ending = threading.Event()


@contextmanager
def children_end_with_it() -> Iterator[None]:
    """What ends the block by an exception (Ctrl-C) ends all children too, and none is started any
    more: a thread that waits for one would keep the program from ending.
    """
    try:
        yield
    except BaseException:
        with _lock:
            _ending.set()
            for child in _running:
                _end(child)
        raise


def run_child(words: Sequence[str], limit: float) -> Ended:
    """Run a task for at most `limit` seconds; what it started ends with it."""
    with _lock:
        if _ending.is_set():
            return Ended((), 1, "interrupted")
        child = _started(words)
        _running.add(child)
    returncode: int | None = None
    try:
        out, err = child.communicate(timeout=limit)
        returncode = child.returncode
    except subprocess.TimeoutExpired:
        _end(child)
        out, err = child.communicate()
    except BaseException:
        _end(child)
        raise
    finally:
        with _lock:
            _running.discard(child)
    return Ended(_answers(out), returncode, err.decode(errors="replace"))


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """With the compilers that it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _answers(output: bytes) -> tuple[Answer, ...]:
    answers = []
    for line in output.decode(errors="replace").splitlines():
        with suppress(ValueError):
            answers.append(json.loads(line))
    return tuple(answer for answer in answers if isinstance(answer, dict))


def main(words: Sequence[str]) -> None:
    """The child's side."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(answer: Answer) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    task, *arguments = words
    match task:
        case "gpus":
            from glm5_kernel.doctor import gpus

            gpus.answer(emit)
        case "register":
            from glm5_kernel.doctor import registering

            registering.answer(emit)
        case "selftest":
            from glm5_kernel.doctor import selftest

            selftest.answer(emit, int(arguments[0]), arguments[1:])
