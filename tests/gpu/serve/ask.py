"""What a server answers: scores of whole prompts, decoded continuations, many requests at once."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import prompts

TOP = 20  # vLLM's limit of log-probabilities for a token
Answer = dict[str, Any]


class Client:
    """`/v1/completions` of one server with token ids, greedy, end of sequence ignored."""

    def __init__(self, url: str, timeout: float = 120) -> None:
        self.url = url
        self.timeout = timeout

    def complete(self, ids: list[int], count: int, **more: object) -> Answer:
        """One choice, and how many prompt tokens came from the prefix cache under `cached`."""
        body = {
            "model": "model",
            "prompt": ids,
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **more,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            found = json.load(answer)
        details = found.get("usage", {}).get("prompt_tokens_details") or {}
        return {**found["choices"][0], "cached": details.get("cached_tokens") or 0}


def rounded(value: float) -> float:
    """To 1e-5, far under what is compared."""
    return round(value, 5)


def score(client: Client, ids: list[int]) -> list[float]:
    """Log-probability of each prompt token but the first."""
    answer = client.complete(ids, 1, prompt_logprobs=0)
    rows = answer["prompt_logprobs"][1:]
    return [rounded(row[str(token)]["logprob"]) for row, token in zip(rows, ids[1:], strict=True)]


def greedy(client: Client, ids: list[int], count: int) -> Answer:
    """Greedy `tokens` and their `logp`."""
    answer = client.complete(ids, count, logprobs=0)
    logp = [rounded(value) for value in answer["logprobs"]["token_logprobs"]]
    return {"tokens": answer["token_ids"], "logp": logp, "cached": answer["cached"]}


def follow(client: Client, ids: list[int], path: list[int]) -> Answer:
    """Decode along a given continuation, so that every server is asked in the same contexts.

    The server decodes greedily; where it chooses another token than `path`, the request is made
    again with the path up to there.

    Returns: for each position of `path`, `own` (the server's choice), `logp` (that of the path's
        token, None where it was not among the first 20), `decoded` (whether it came from a decode
        step rather than the end of a prefill); and `cached`, the most tokens found in the prefix
        cache.
    """
    found: Answer = {"own": [], "logp": [], "decoded": [], "cached": 0}
    while (done := len(found["own"])) < len(path):
        answer = client.complete(ids + path[:done], len(path) - done, logprobs=TOP)
        found["cached"] = max(found["cached"], answer["cached"])
        tops = answer["logprobs"]["top_logprobs"]
        for step, (token, top) in enumerate(zip(answer["token_ids"], tops, strict=True)):
            wanted = path[done + step]
            value = top.get(f"token_id:{wanted}")
            found["own"].append(token)
            found["logp"].append(None if value is None else rounded(value))
            found["decoded"].append(step > 0)
            if token != wanted:
                break
    return found


def crowd(client: Client) -> Answer:
    """The first of the crowd's prompts each alone, then all at once."""
    asked = prompts.crowd()
    alone = [greedy(client, ids, prompts.CROWD_TOKENS) for ids in asked[: prompts.CROWD_ALONE]]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda ids: greedy(client, ids, prompts.CROWD_TOKENS), asked))
    return {"alone": alone, "together": together[: prompts.CROWD_ALONE]}


def everything(client: Client, paths: dict[str, list[int]]) -> Answer:
    """All questions. `paths` has the continuation of each prompt, by its length in tokens."""
    start = time.monotonic()
    asked = prompts.single()
    greedy(client, asked["10"], 4)
    answer: Answer = {"prompt": {}, "follow": {}}
    for name, ids in asked.items():
        answer["prompt"][name] = score(client, ids)
        if name in paths:
            answer["follow"][name] = follow(client, ids, paths[name])
    answer["crowd"] = crowd(client)
    answer["seconds"] = round(time.monotonic() - start, 1)
    return answer
