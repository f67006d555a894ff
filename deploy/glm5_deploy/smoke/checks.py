"""The checks: each asks one thing of the server and says what came back."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from glm5_deploy.config.models import SmokePrompt
from glm5_deploy.errors import CommandFailedError, CommandTimeoutError, SudoRefusedError
from glm5_deploy.kernel_doctor import LIMIT, examine_served, summary
from glm5_deploy.smoke import backend
from glm5_deploy.smoke.api import (
    AnswerError,
    Streamed,
    choice,
    completed,
    number,
    quoted,
    records,
    shorten,
    shown,
    usage,
)
from glm5_deploy.smoke.context import PROMPT, CheckFailed, CheckSkipped, Context, Probe
from glm5_deploy.smoke.golden import golden, same_tokens
from glm5_deploy.smoke.gpus import gpus
from glm5_deploy.smoke.needle import needle
from glm5_deploy.stages.record import RecordError

_FILLER = "The quick brown fox jumps over the lazy dog. "
_NOT_THE_SAME = (
    "the same request must give the same text: other traffic at the time can change the last "
    "bits, so try again on a quiet server; if it stays so, suspect the attention backend or kernel"
)
_BROKEN = (
    "the model computes no sound numbers: compare its files with the source (`glm5-deploy up`), "
    "then try another attention backend or kv-cache-dtype"
)
_UNEXPECTED = (
    "if this answer is right for this model and these arguments, write it into smoke.expect; "
    "if not, compare the model's files, quantization and attention backend with those that gave "
    "the expected one"
)
_TOO_SLOW = (
    "is something else using the GPUs (nvidia-smi)? If this is what they give, change "
    "smoke.max_ttft_seconds or smoke.min_tokens_per_second"
)
_TIMED_TOKENS = 64
_APART_SECONDS = 0.001
_ENOUGH_ARRIVALS = 8


def health(context: Context) -> str:
    """``/health`` answers 200."""
    hint = f"glm5-deploy logs --host {context.host.name} --explain"
    try:
        status = context.api.status("/health")
    except AnswerError as error:
        raise CheckFailed(str(error), hint) from error
    if status != 200:
        raise CheckFailed(f"/health answers {status}", hint)
    return "200"


def model_list(context: Context) -> str:
    """The list names the served model."""
    rows = records(context.api.get("/v1/models"), "data")
    names = [str(row.get("id")) for row in rows]
    wanted = context.profile.served_model_name
    if wanted not in names:
        raise CheckFailed(
            f"lists {shorten(', '.join(names)) or 'nothing'}, not {wanted}",
            "does another server answer on this port? See serve.port, and `glm5-deploy status`",
        )
    return shorten(", ".join(names))


def completion(context: Context) -> str:
    """A completion holds text."""
    answer = context.api.patient().complete(PROMPT, context.profile.smoke.max_tokens)
    return _some_text(completed(answer))


def chat(context: Context) -> str:
    """A chat completion holds text or reasoning."""
    if not context.profile.smoke.chat:
        raise CheckSkipped("the profile says smoke.chat: false")
    body = {
        "model": context.api.model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": context.profile.smoke.max_tokens,
        "temperature": 0,
    }
    try:
        answer = context.api.post("/v1/chat/completions", body)
    except AnswerError as error:
        if "chat template" not in str(error):
            raise
        hint = "add a chat template to the model's folder, or set smoke.chat: false"
        raise CheckFailed(str(error), hint) from error
    message = choice(answer).get("message")
    fields = message if isinstance(message, dict) else {}
    found = [fields.get(key) for key in ("content", "reasoning_content", "reasoning")]
    return _some_text(next((text for text in found if text), None))


def _some_text(text: object) -> str:
    if not text:
        raise CheckFailed("the answer holds no text")
    if not isinstance(text, str):
        raise CheckFailed(f"the answer holds no text but {shown(text)}")
    return quoted(text, 60)


def stream(context: Context) -> str:
    """A stream ends with [DONE], carries usage, and says what the whole answer says."""
    smoke = context.profile.smoke
    found = _with_text(context.api.stream(PROMPT, smoke.max_tokens))
    whole = completed(context.api.complete(PROMPT, smoke.max_tokens))
    if found.text != whole:
        raise CheckFailed(
            f"streams {quoted(found.text, 50)} but answers {quoted(whole, 50)}",
            _NOT_THE_SAME,
        )
    return f"{found.chunks} chunks, {found.tokens} tokens"


def _with_text(found: Streamed) -> Streamed:
    if not found.text:
        raise CheckFailed("the stream holds no text")
    return found


def greedy(context: Context) -> str:
    """The same greedy request twice gives the same text."""
    limit = context.profile.smoke.max_tokens
    first, second = (completed(context.api.complete(PROMPT, limit)) for _ in range(2))
    if first != second:
        raise CheckFailed(f"{quoted(first, 50)} at first, then {quoted(second, 50)}", _NOT_THE_SAME)
    return "twice the same"


def logprobs(context: Context) -> str:
    """Every log-probability is a finite number, also those of the runners-up."""
    answer = context.api.complete(PROMPT, context.profile.smoke.max_tokens, logprobs=5)
    chosen, others = _logprobs(choice(answer).get("logprobs"))
    if not chosen:
        raise CheckFailed("the answer holds no log-probabilities")
    for position, value in enumerate([*chosen, *others]):
        # vLLM writes -9999 for what it cannot express: a greedy token cannot be that unlikely.
        impossible = position < len(chosen) and isinstance(value, float) and value <= -9999
        if not _finite(value) or impossible:
            text = shorten(str(value))
            raise CheckFailed(f"log-probability {position + 1} of {len(chosen)} is {text}", _BROKEN)
    return f"{len(chosen)} finite, lowest {min(chosen):.3f}"


def _logprobs(found: object) -> tuple[list[Any], list[Any]]:
    """Those of the chosen tokens, and of the runners-up.

    Raises:
        AnswerError: they are of another form than a completion's.
    """
    fields: dict[str, Any] = found if isinstance(found, dict) else {}
    chosen, rows = fields.get("token_logprobs") or [], fields.get("top_logprobs") or []
    lists = isinstance(chosen, list) and isinstance(rows, list)
    if not lists or not all(isinstance(row or {}, dict) for row in rows):
        raise AnswerError(f"log-probabilities of another form: {shown(found)}")
    return chosen, [value for row in rows for value in (row or {}).values()]


def _finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def expectation(prompt: SmokePrompt, context: Context) -> str:
    """A prompt's greedy answer is what the profile says."""
    answer = context.api.complete(prompt.prompt, prompt.max_tokens, return_token_ids=True)
    found = choice(answer)
    text = completed(answer)
    if prompt.text is not None and text != prompt.text:
        raise CheckFailed(
            f"text {quoted(text, 60)}, expected {quoted(prompt.text, 60)}", _UNEXPECTED
        )
    if prompt.contains is not None and prompt.contains not in text:
        raise CheckFailed(
            f"{quoted(prompt.contains, 40)} is not in {quoted(text, 80)}", _UNEXPECTED
        )
    if prompt.tokens is not None:
        same_tokens(prompt.tokens, found.get("token_ids"), _UNEXPECTED)
    return quoted(text, 60)


def long_prompt(context: Context) -> str:
    """A prompt of exactly the given token length is taken and counted right."""
    wanted, limit = context.profile.smoke.prompt_tokens, context.profile.smoke.max_tokens
    if wanted is None:
        raise CheckSkipped("the profile names no smoke.prompt_tokens")
    ids = _token_ids(context, wanted)
    prompt: str | list[int] = _FILLER * (wanted // 10 + 1) if ids is None else ids
    answer = context.api.patient().complete(prompt, limit)
    _some_text(completed(answer))
    counted = usage(answer, "prompt_tokens")
    if ids is None:
        return f"about {wanted} tokens, counted {counted} (no /tokenize for an exact length)"
    if counted != wanted:
        raise CheckFailed(f"{wanted} tokens were sent, the server counted {counted}")
    return f"{counted} tokens"


def _token_ids(context: Context, wanted: int) -> list[int] | None:
    """``wanted`` token ids by the server, or None where it has no /tokenize.

    A short text's ids are repeated: a tokenizer warns in the server's log of a text that is longer
    than its model takes, although nobody asks the model for it.
    """
    body = {"model": context.api.model, "prompt": _FILLER}
    try:
        answer = context.api.post("/tokenize", body)
        plain = context.api.post("/tokenize", body | {"add_special_tokens": False})
    except AnswerError as error:
        if error.status == 404:
            return None
        raise
    room, tokens, more = number(answer.get("max_model_len")), _ids(answer), _ids(plain)
    total = wanted + context.profile.smoke.max_tokens
    if room is not None and total > room:
        raise CheckFailed(
            f"{total} tokens do not fit into max_model_len {room}", "lower smoke.prompt_tokens"
        )
    if not more:
        raise CheckFailed(f"/tokenize gives {shown(plain)}")
    return (tokens + more * (wanted // len(more) + 1))[:wanted]


def _ids(answer: dict[str, Any]) -> list[int]:
    """What /tokenize gives.

    Raises:
        AnswerError: something else.
    """
    found = answer.get("tokens")
    if not isinstance(found, list) or any(number(token) is None for token in found):
        raise AnswerError(f"/tokenize gives {shown(answer)}")
    return found


def concurrent(context: Context) -> str:
    """Several requests at once are all answered."""
    number, limit = context.profile.smoke.concurrency, context.profile.smoke.max_tokens

    def ask(index: int) -> AnswerError | None:
        try:
            answer = context.api.complete(f"{PROMPT} ({index})", limit)
            return None if completed(answer) else AnswerError("an answer without text")
        except AnswerError as error:
            return error

    with ThreadPoolExecutor(number) as pool:
        problems = [problem for problem in pool.map(ask, range(number)) if problem]
    if problems:
        first = problems[0]
        raise AnswerError(f"{len(problems)} of {number} failed: {first}", first.status)
    return f"{number} at once"


def wrong_key(context: Context) -> str:
    """A wrong key is refused."""
    return _refused(context, {"Authorization": "Bearer not-the-key-of-this-server"})


def missing_key(context: Context) -> str:
    """A request without a key is refused."""
    return _refused(context, {})


def _refused(context: Context, headers: dict[str, str]) -> str:
    if context.api_key is None:
        raise CheckSkipped("no API key is set")
    anonymous = type(context.api)(context.anonymous, context.api.model, context.api.deadline)
    status = anonymous.status("/v1/models", headers)
    if status not in (401, 403):
        raise CheckFailed(
            f"answered with {status}, not 401", "is VLLM_API_KEY in the server's environment?"
        )
    return str(status)


def attention(context: Context) -> str:
    """The journal names the expected attention backend, KV cache and indexer, and no other."""
    smoke = context.profile.smoke
    wanted = backend.Expected(smoke.attention_backend, smoke.kv_cache, smoke.indexer)
    found = backend.read_backends(context.host, context.profile.unit_name)
    if not wanted:
        named = f"; the log says {found.describe()}" if found and found.attention else ""
        raise CheckSkipped(f"the profile expects none{named}")
    if found is None:
        raise CheckFailed(
            "the journal could not be read", "allow sudo, or add the user to systemd-journal"
        )
    if not found.attention:
        raise CheckFailed(
            f"the log names no attention backend, expected {wanted.describe()}",
            "where the journal was rotated since the start, `glm5-deploy restart` writes it anew",
        )
    problem = backend.difference(wanted, found)
    if problem is not None:
        raise CheckFailed(f"the log says {found.describe()}, expected {wanted.describe()}", problem)
    return found.describe()


def speed(context: Context) -> str:
    """Time to the first token and tokens a second of one stream, against the profile's limits."""
    smoke = context.profile.smoke
    found = _with_text(_long_stream(context))
    first, (rate, span) = found.stamps[0], measured_rate(found)
    text = f"first token after {first:.3f} s, {rate:.1f} tokens/s {span}"
    if smoke.max_ttft_seconds is not None and first > smoke.max_ttft_seconds:
        raise CheckFailed(
            f"{text}; at most {smoke.max_ttft_seconds} s to the first is allowed", _TOO_SLOW
        )
    if smoke.min_tokens_per_second is not None and rate < smoke.min_tokens_per_second:
        raise CheckFailed(
            f"{text}; at least {smoke.min_tokens_per_second} tokens/s is wanted", _TOO_SLOW
        )
    return text


def _long_stream(context: Context) -> Streamed:
    """An answer long enough to be timed; a short one where the server takes no such request."""
    limit, api = context.profile.smoke.max_tokens, context.api.patient()
    try:
        return api.stream(PROMPT, max(limit, _TIMED_TOKENS), ignore_eos=True)
    except AnswerError as error:
        if error.status not in (400, 422):
            raise
        return api.stream(PROMPT, limit)


def measured_rate(found: Streamed) -> tuple[float, str]:
    """Tokens a second, and over what.

    Text that waits somewhere on its way arrives in bursts, whose spacing says nothing of the
    server. Where enough of them arrive apart, what follows the first burst is counted; else the
    whole request, which can only understate the rate.
    """
    starts = [0] + [
        index
        for index, (before, after) in enumerate(itertools.pairwise(found.stamps), 1)
        if after - before > _APART_SECONDS
    ]
    if len(starts) < _ENOUGH_ARRIVALS:
        return found.tokens / max(found.total, 1e-6), "over the whole request"
    later = found.tokens * (found.chunks - starts[1]) / found.chunks
    return later / (found.stamps[-1] - found.stamps[0]), "after the first"


def doctor(context: Context) -> str:
    """glm5-kernel's doctor finds nothing wrong in the environment that is served."""
    if not context.profile.engine.kernel:
        raise CheckSkipped("the profile installs no glm5-kernel (engine.kernel)")
    limit = min(LIMIT, max(int(context.api.deadline - time.monotonic()), 30))
    try:
        found = examine_served(context.host, context.target.root, limit)
    except SudoRefusedError as error:
        raise CheckSkipped("it runs as the service's user, which takes sudo") from error
    except (CommandFailedError, CommandTimeoutError, RecordError) as error:
        raise CheckFailed(error.message, error.hint) from error
    if found is None:
        raise CheckSkipped("the release that is served has no glm5-kernel")
    if found.failed:
        raise CheckFailed(summary(found.failed), found.failed[0].hint)
    return found.describe()


def suite(context: Context) -> list[tuple[str, Probe]]:
    """All checks with their names, in the order in which they run; health comes first."""
    expected: list[tuple[str, Probe]] = [
        (f"expected answer {number}", functools.partial(expectation, prompt))
        for number, prompt in enumerate(context.profile.smoke.expect, 1)
    ]
    return [
        ("health", health),
        ("model list", model_list),
        ("completion", completion),
        ("chat", chat),
        ("stream", stream),
        ("greedy twice", greedy),
        ("log-probabilities", logprobs),
        *expected,
        *([("golden tokens", golden)] if context.profile.smoke.golden is not None else []),
        ("long prompt", long_prompt),
        *([("needle", needle)] if context.profile.smoke.needle is not None else []),
        ("concurrency", concurrent),
        ("wrong key refused", wrong_key),
        ("missing key refused", missing_key),
        ("attention backend", attention),
        ("speed", speed),
        ("doctor", doctor),
        *([("gpus", gpus)] if context.profile.gpus.count else []),
    ]
