"""Golden tokens: a tiny model's greedy answers must be those of the reference that made it.

`python -m glm5_kernel make-tiny` writes golden.json beside the model: prompts, one of them longer
than the indexer selects, and what transformers answers in float32 on the same weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glm5_deploy.smoke.api import choice, shorten
from glm5_deploy.smoke.context import CheckFailed, Context

FORMAT = 1
_DIFFERS = (
    "the prompts were chosen so that rounding does not turn an answer: suspect the model's files, "
    "their loader, the attention backend or the indexer"
)


def golden(context: Context) -> str:
    """Every prompt of golden.json is continued by the reference's tokens.

    Raises:
        CheckFailed: the file cannot be read, or a token differs.
    """
    path = context.profile.smoke.golden
    assert path is not None
    prompts = read_golden(path)
    for each in prompts:
        answer = context.api.patient().complete(
            list(each["prompt"]), len(each["tokens"]), return_token_ids=True, ignore_eos=True
        )
        try:
            same_tokens(list(each["tokens"]), choice(answer).get("token_ids"), _DIFFERS)
        except CheckFailed as failed:
            where = f"{each['name']} ({len(each['prompt'])} tokens)"
            raise CheckFailed(f"{where}: {failed}", failed.hint) from failed
    lengths = ", ".join(str(len(each["prompt"])) for each in prompts)
    tokens = sum(len(each["tokens"]) for each in prompts)
    return f"{tokens} tokens as the reference's, after {lengths}"


def read_golden(path: Path) -> list[dict[str, Any]]:
    """The prompts of a golden.json.

    Raises:
        CheckFailed: it is none, or one of another format.
    """
    hint = "make it anew: `python -m glm5_kernel make-tiny` writes it beside the model"
    try:
        document = json.loads(path.read_text())
        prompts = [dict(each) for each in document["prompts"]]
        complete = all(each["prompt"] and each["tokens"] and each["name"] for each in prompts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckFailed(f"{path}: {error or 'no golden.json'}", hint) from error
    if document.get("format") != FORMAT:
        raise CheckFailed(f"{path}: format {document.get('format')}; {FORMAT} is right", hint)
    if not prompts or not complete:
        raise CheckFailed(f"{path}: it holds no prompt, or an empty one", hint)
    return prompts


def same_tokens(wanted: list[int], found: object, hint: str) -> None:
    """Compare greedy tokens.

    Raises:
        CheckFailed: the first that differs, with its neighbours.
    """
    if not isinstance(found, list):
        raise CheckFailed(
            f"the server returns no token ids but {shorten(str(found), 40)}",
            "vLLM does from 0.11 on (return_token_ids)",
        )
    if found != wanted:
        pairs = enumerate(zip(wanted, found, strict=False))
        at = next((i for i, (want, got) in pairs if want != got), min(len(wanted), len(found)))
        raise CheckFailed(
            f"token {at + 1} differs: {found[at : at + 3]}…, expected {wanted[at : at + 3]}…", hint
        )
