"""vLLM's Prometheus metrics, as far as a status wants them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})? +(?P<value>\S+)")
# vLLM's names since 0.10; engines (data parallel) are samples of their own and are added up.
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Load:
    """How busy a server is.

    Args:
        generated: tokens since it started.
        at: monotonic time of the sample, in seconds.
    """

    running: int
    waiting: int
    generated: float
    at: float


def parse_load(text: str, at: float) -> Load | None:
    """Read the text format; None where the metrics are not vLLM's."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found and found["name"] in (_RUNNING, _WAITING, _GENERATED):
            sums[found["name"]] = sums.get(found["name"], 0.0) + _number(found["value"])
    if _RUNNING not in sums or _GENERATED not in sums:
        return None
    return Load(int(sums[_RUNNING]), int(sums.get(_WAITING, 0)), sums[_GENERATED], at)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value == value and abs(value) != float("inf") else 0.0


def rate(before: Load | None, now: Load | None) -> float | None:
    """Tokens a second between two samples; None where one lacks or the server restarted."""
    if before is None or now is None or now.at <= before.at or now.generated < before.generated:
        return None
    return (now.generated - before.generated) / (now.at - before.at)
