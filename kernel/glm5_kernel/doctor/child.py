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
from collections.abc import Callable, Sequence
from contextlib import suppress
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
        # An exception's own name, without its module.
        return re.sub(r"^(?:\w+\.)+(?=\w+: )", "", lines[-1])


def run_child(words: Sequence[str], limit: float) -> Ended:
    """Run a task for at most `limit` seconds; what it started ends with it."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
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
    return Ended(_answers(out), returncode, err.decode(errors="replace"))


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
