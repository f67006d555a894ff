"""A needle in a haystack: does attention find what the indexer must choose from a long text?

The text is longer than the indexer's top-k, so that a wrong selection, or a layer that reads wrong
slots of the KV cache, loses the sentence.
"""

from __future__ import annotations

from typing import Any

from glm5_deploy.config.models import Needle
from glm5_deploy.smoke.api import AnswerError, choice, number, quoted, usage
from glm5_deploy.smoke.context import CheckFailed, CheckSkipped, Context

_PEOPLE = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas")
_THINGS = ("the harbour", "a blue lamp", "three maps", "the old mill", "a letter", "warm bread")
_QUESTION = "What is the number of the locker in the station? Answer with the number alone."
_CODES = ("48213", "90657", "31846", "75092", "26438")
_WRONG = (
    "the model reads long prompts wrong: compare its files with the source, then try "
    "GLM5_INDEXER and kv-cache-dtype otherwise; `glm5-deploy logs --explain` may say more"
)
_SAMPLE = 64


def needle(context: Context) -> str:
    """A number that was hidden in a long text comes back, from every depth."""
    wanted = context.profile.smoke.needle
    if wanted is None:
        raise CheckSkipped("the profile names no smoke.needle")
    count = _sentences(context, wanted)
    lengths = [
        _find(context, wanted, count, depth, _CODES[number % len(_CODES)])
        for number, depth in enumerate(wanted.depths)
    ]
    return f"found at {', '.join(f'{d:.0%}' for d in wanted.depths)} of {min(lengths)} tokens"


def sentence(number: int) -> str:
    """A sentence of the haystack; no two of them are the same."""
    person, thing = _PEOPLE[number % len(_PEOPLE)], _THINGS[number // 3 % len(_THINGS)]
    return f"On day {number + 1} {person} saw {thing} and went on. "


def haystack(count: int, depth: float, code: str) -> str:
    """The text with the needle after ``depth`` of its sentences."""
    lines = [sentence(number) for number in range(count)]
    lines.insert(round(depth * count), f"The locker in the station has the number {code}. ")
    return "".join(lines)


def _sentences(context: Context, wanted: Needle) -> int:
    """How many make the wanted length, by the server's tokenizer where it tells."""
    sample = "".join(map(sentence, range(_SAMPLE)))
    try:
        body = {"model": context.api.model, "prompt": sample}
        tokens = number(context.api.post("/tokenize", body).get("count"))
    except AnswerError as error:
        if error.status != 404:
            raise
        tokens = None
    each = tokens / _SAMPLE if tokens and tokens >= _SAMPLE else 13
    return int(wanted.tokens / each) + 1


def _find(context: Context, wanted: Needle, count: int, depth: float, code: str) -> int:
    """Ask for one needle; the prompt's length in tokens.

    Raises:
        CheckFailed: another answer.
    """
    text = haystack(count, depth, code)
    answer = _ask(context, f"{text}\n\n{_QUESTION}", wanted.max_tokens)
    found, length = _said(answer), usage(answer, "prompt_tokens") or 0
    if code not in found:
        raise CheckFailed(
            f"{code}, at {depth:.0%} of {length} tokens, is not in {quoted(found, 60)}", _WRONG
        )
    return length


def _ask(context: Context, prompt: str, limit: int) -> dict[str, Any]:
    api = context.api.patient()
    if not context.profile.smoke.chat:
        return api.complete(f"{prompt}\nThe number is", limit)
    body = {
        "model": api.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": limit,
        "temperature": 0,
        # GLM's template knows it; others pass over it.
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return api.post("/v1/chat/completions", body)


def _said(answer: dict[str, Any]) -> str:
    found = choice(answer)
    message = found.get("message")
    fields = message if isinstance(message, dict) else found
    names = ("text", "content", "reasoning_content", "reasoning")
    return " ".join(str(fields[name]) for name in names if fields.get(name))
