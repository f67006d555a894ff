"""The few lines of a log that show why a server ended."""

from __future__ import annotations

import re
from collections.abc import Iterable

from glm5_deploy.logs.journal import last_state
from glm5_deploy.logs.progress import is_bar

# vLLM's own word, Python's last line of a traceback, and what the loader and the kernel say.
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|(?:^|\s)[\w.]*(?:Error|Exception|Interrupt)\b(?::|$)"
    r"|error while loading|can't open file|[Kk]illed process"
)


def telling(lines: Iterable[str], limit: int = 20) -> tuple[str, ...]:
    """At most ``limit`` lines, in order: the last ones, and of those before the last errors.

    Blank lines and the states of progress bars are left out.
    """
    said = [line for line in map(last_state, lines) if line.strip() and _says_something(line)]
    errors = [number for number, line in enumerate(said) if _ERROR.search(line)]
    chosen = set(range(len(said))[-(limit // 2) :]) | set(errors[-(limit // 2) :])
    for number in reversed(range(len(said))):
        if len(chosen) >= limit:
            break
        chosen.add(number)
    return tuple(said[number] for number in sorted(chosen))


def _says_something(line: str) -> bool:
    return not is_bar(line) or _ERROR.search(line) is not None
