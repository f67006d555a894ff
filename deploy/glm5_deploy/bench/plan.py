"""Which loads are measured: what was asked for, and what the served context has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import PreflightError, UsageError

CONCURRENCY = (1, 8, 64)
PROMPT_TOKENS = (1000, 8000)
OUTPUT_TOKENS = 128
LIMIT = 900
"""Seconds for all loads of a host."""

MOST = 1_000_000
"""Of requests at once, in all, and tokens of a prompt: more is a slip of the finger."""

_LONG = 4000
_MOST_TOKENS = 100_000_000
"""Tokens of a load's prompts, which vLLM's benchmark makes before it sends the first: more than
this is gigabytes of memory beside the server.
"""
_MARGIN = 16
"""Tokens that a tokenizer may add to a prompt: its special ones, and what does not come back as it
was after decoding."""


@dataclass(frozen=True)
class Load:
    """One measurement.

    Args:
        concurrency: requests at once.
        prompt_tokens: of each request.
        requests: in all.
    """

    concurrency: int
    prompt_tokens: int
    requests: int

    def word(self) -> str:
        """As the program on the host takes it."""
        return f"{self.concurrency}:{self.prompt_tokens}:{self.requests}"


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Args:
        prompt_tokens: None: `PROMPT_TOKENS`, as far as they fit.
        requests: of each load; None: see `requests`.
        limit: seconds for all loads of a host.
    """

    concurrency: tuple[int, ...] = CONCURRENCY
    prompt_tokens: tuple[int, ...] | None = None
    output_tokens: int = OUTPUT_TOKENS
    requests: int | None = None
    limit: int = LIMIT


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """``1,8,64`` as numbers, each once, in their order.

    Raises:
        UsageError: something in it is no whole number from 1 to `MOST`.
    """
    words = [word.strip() for word in text.split(",")]
    numbers = {word: natural(word) or 0 for word in words}
    wrong = [word for word in words if not 0 < numbers[word] <= MOST]
    if wrong:
        raise UsageError(
            f"{option} {text[:40]}: {wrong[0][:40] or 'nothing'} is no whole number from 1 to"
            f" {MOST:,}",
            f"separate numbers with commas: {option} 1,8",
        )
    return tuple(dict.fromkeys(numbers.values()))


def requests(concurrency: int, prompt_tokens: int) -> int:
    """How many a load sends: enough that as many are at work most of the time, and that long
    prompts end in minutes.
    """
    if prompt_tokens < _LONG:
        return max(4, 2 * concurrency)
    return max(3, concurrency)


def loads(wanted: Wanted, room: int | None) -> tuple[Load, ...]:
    """The loads from light to heavy, so that a limit takes the heaviest.

    Args:
        room: tokens of prompt and answer that the server takes; None where it does not say.

    Raises:
        PreflightError: what was asked for does not fit.
    """
    prompts = _prompts(wanted, room)
    chosen = tuple(
        Load(concurrency, tokens, wanted.requests or requests(concurrency, tokens))
        for tokens in sorted(prompts)
        for concurrency in sorted(wanted.concurrency)
    )
    for load in chosen:
        _bearable(load)
    return chosen


def _bearable(load: Load) -> None:
    tokens = load.requests * load.prompt_tokens
    if tokens > _MOST_TOKENS:
        raise PreflightError(
            f"{load.requests:,} requests with prompts of {load.prompt_tokens:,} tokens are"
            f" {tokens:,} tokens: a load is at most {_MOST_TOKENS:,}",
            f"--requests {_MOST_TOKENS // load.prompt_tokens}",
        )


def _prompts(wanted: Wanted, room: int | None) -> Sequence[int]:
    asked = wanted.prompt_tokens or PROMPT_TOKENS
    if room is None:
        return asked
    most = room - wanted.output_tokens - _MARGIN
    fitting = [tokens for tokens in asked if tokens <= most]
    if wanted.prompt_tokens is None and most > 0:
        return fitting or [most]
    if len(fitting) < len(asked):
        raise PreflightError(
            f"prompts of {max(asked)} tokens with answers of {wanted.output_tokens} do not fit into"
            f" the {room} tokens that the server takes (max-model-len)",
            f"--prompt-tokens {most}" if most > 0 else f"--output-tokens {max(room // 4, 1)}",
        )
    return asked
