"""What a benchmark found: the lines of the program on the host as values, judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from glm5_deploy.config.models import Smoke
from glm5_deploy.report.outcome import Check

Status = Literal["measured", "failed", "stopped", "skipped"]

_MARK = "RESULT "
_TOO_SLOW = (
    "is something else using the GPUs (nvidia-smi)? If this is what they give, change"
    " smoke.max_ttft_seconds or smoke.min_tokens_per_second"
)


@dataclass(frozen=True)
class Spread:
    """Of all requests of a load, in milliseconds."""

    median: float
    p99: float


@dataclass(frozen=True)
class Figures:
    """What a load took.

    Args:
        tokens_per_second: of answers, over all requests.
        total_tokens_per_second: of prompts and answers.
        ttft: from a request to its first token.
        tpot: from token to token after the first, averaged over each request.
    """

    tokens_per_second: float
    total_tokens_per_second: float
    ttft: Spread
    tpot: Spread


@dataclass(frozen=True)
class Result:
    """A load and what came of it.

    Args:
        error: why it was not measured, or not all of it.
        figures: None where no request was answered.
        document: as the host gave it.
    """

    concurrency: int
    prompt_tokens: int
    requests: int
    status: Status
    error: str | None
    figures: Figures | None
    document: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.concurrency} × {self.prompt_tokens}"


@dataclass
class Results:
    """Collects what the program on the host prints.

    Args:
        head: version of vLLM, seed, time of the beginning.
    """

    head: dict[str, Any] = field(default_factory=dict)
    loads: list[Result] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Read a line; whether it was one of results."""
        if not line.startswith(_MARK):
            return False
        document = json.loads(line.removeprefix(_MARK))
        if "concurrency" in document:
            self.loads.append(parse_result(document))
        else:
            self.head = document
        return True

    def to_json(self) -> dict[str, Any]:
        """The host's part of the document."""
        loads = [_rounded({"error": None} | load.document) for load in self.loads]
        return {**_rounded(self.head), "loads": loads}


def parse_result(document: dict[str, Any]) -> Result:
    """A load's document as a value."""
    figures = None
    if "ttft_ms" in document:
        figures = Figures(
            document["tokens_per_second"],
            document["total_tokens_per_second"],
            Spread(**document["ttft_ms"]),
            Spread(**document["tpot_ms"]),
        )
    return Result(
        document["concurrency"],
        document["prompt_tokens"],
        document["requests"],
        document["status"],
        document.get("error"),
        figures,
        document,
    )


def _rounded(value: Any) -> Any:  # noqa: ANN401  # of JSON
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def rows(results: Sequence[Result], smoke: Smoke, limit: int, host: str) -> tuple[Check, ...]:
    """A check for each load that was not measured, and for each limit of the profile.

    Args:
        limit: seconds that all loads had.
        host: for hints.
    """
    return (*_unmeasured(results, limit, host), *_floors(results, smoke))


def _unmeasured(results: Iterable[Result], limit: int, host: str) -> Iterable[Check]:
    more = f"--limit {2 * limit}, or fewer --requests"
    for result in results:
        if result.status in ("stopped", "skipped"):
            yield Check(result.name, "warning", result.error or "", more)
        elif result.status == "failed":
            hint = f"glm5-deploy logs --host {host} --explain"
            yield Check(result.name, "failed", result.error or "", hint)


def _floors(results: Iterable[Result], smoke: Smoke) -> Iterable[Check]:
    """The profile's limits are for one stream; that of the first token for the shortest prompt."""
    measured = [each for each in results if each.status == "measured" and each.figures is not None]
    single = [each for each in measured if each.concurrency == 1]
    single.sort(key=lambda each: each.prompt_tokens)
    for each in single if smoke.min_tokens_per_second is not None else ():
        yield _rate(each, smoke.min_tokens_per_second or 0.0)
    if single and smoke.max_ttft_seconds is not None:
        yield _first(single[0], smoke.max_ttft_seconds)


def _rate(result: Result, floor: float) -> Check:
    assert result.figures is not None
    rate = 1000 / result.figures.tpot.median if result.figures.tpot.median else 0.0
    text = f"{result.name}: {rate:.1f} tokens/s after the first, at least {floor:g} wanted"
    return _judged("one stream", rate >= floor, text)


def _first(result: Result, ceiling: float) -> Check:
    assert result.figures is not None
    seconds = result.figures.ttft.median / 1000
    text = f"{result.name}: first token after {seconds:.3f} s, at most {ceiling:g} s wanted"
    return _judged("first token", seconds <= ceiling, text)


def _judged(name: str, good: bool, text: str) -> Check:
    return Check(name, "passed" if good else "failed", text, None if good else _TOO_SLOW)
