"""Golden tokens: a tiny model's greedy answers must be those of the reference that made it.

One of the prompts is longer than the indexer selects; the answers are those of transformers, in
float32 on the same weights.
"""

from __future__ import annotations

from glm5_deploy.config.golden import read_golden
from glm5_deploy.errors import UsageError
from glm5_deploy.smoke.api import choice, shorten
from glm5_deploy.smoke.context import CheckFailed, Context

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
    try:
        prompts = read_golden(path)
    except UsageError as error:
        raise CheckFailed(error.message, error.hint) from error
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
        given = shorten(str(found[at : at + 3]), 60)
        raise CheckFailed(
            f"token {at + 1} differs: {given}…, expected {wanted[at : at + 3]}…", hint
        )
