"""golden.json: prompts, and the greedy tokens and log-probabilities of the reference after them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glm5_kernel.gguf.tiny.codec import package
from glm5_kernel.gguf.tiny.reference import (
    build_model,
    greedy,
    log_probabilities,
    read_tensors,
)
from glm5_kernel.gguf.tiny.spec import TinySpec, config
from glm5_kernel.gguf.tiny.vocabulary import WORDS

FORMAT = 1
NEW_TOKENS = 16
TOP = 8
CANDIDATES: Mapping[str, int] = {"short": 24, "medium": 8, "long": 2}
"""Prompts tried of each, of which the best is taken."""
BEYOND = 96
"""Tokens by which the long prompt passes what the indexer selects."""


@dataclass(frozen=True)
class Golden:
    """A prompt and what the reference answers.

    Attributes:
        name: `short`, `medium` or `long`, the last longer than the indexer selects.
        text: of the prompt.
        prompt: its token ids.
        tokens: greedy, in order.
        answer: their text.
        logprobs: of each of them.
        top: of each, the likeliest ids and their log-probabilities.
        margin: the least distance between the likeliest and the second in all of them: where a
            server's rounding is far below it, its greedy tokens are these.
    """

    name: str
    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    answer: str
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    margin: float


def write_golden(
    folder: Path, spec: TinySpec, paths: Iterable[Path], say: Callable[[str], None] = print
) -> Path:
    """Compute golden.json from the files in `folder`.

    Args:
        folder: with tokenizer.json.
        spec: the model.
        paths: its GGUF files.
        say: told of every prompt.

    Raises:
        MissingPackageError: torch, transformers or gguf is not installed.
    """
    torch, transformers = (
        package("torch", "golden tokens"),
        package("transformers", "golden tokens"),
    )
    tokenizers = package("tokenizers", "golden tokens")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tensors = read_tensors(paths)
    model = build_model(config(spec), tensors, spec.hp, spec.pattern)
    goldens = [_best(spec, name, length, model, tokenizer) for name, length in _lengths(spec)]
    for each in goldens:
        say(f"golden {each.name}: {len(each.prompt)} tokens, margin {each.margin:.2f}: "
            f"{each.answer!r}")  # fmt: skip
    document = {
        "format": FORMAT,
        "model": spec.name,
        "reference": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "dtype": "float32 on dequantised weights",
            "norms": "q_a and kv_a with the config's epsilon",
        },
        "prompts": [asdict(each) for each in goldens],
    }
    path = folder / "golden.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def read_golden(folder: Path) -> tuple[Golden, ...]:
    """What `write_golden` wrote.

    Raises:
        ValueError: the file is of another format.
    """
    document: Mapping[str, Any] = json.loads((folder / "golden.json").read_text())
    if document.get("format") != FORMAT:
        raise ValueError(f"golden.json: format {document.get('format')}; {FORMAT} is right")
    return tuple(_golden(each) for each in document["prompts"])


def _golden(each: Mapping[str, Any]) -> Golden:
    top = tuple(tuple((int(n), float(p)) for n, p in step) for step in each["top"])
    lists = {key: tuple(each[key]) for key in ("prompt", "tokens", "logprobs")}
    return Golden(**{**each, **lists, "top": top})


def _lengths(spec: TinySpec) -> list[tuple[str, int]]:
    assert spec.hp.indexer is not None
    long = spec.hp.indexer.topk + BEYOND
    lengths = [("short", 8), ("medium", 48), ("long", long)]
    return [each for each in lengths if each[1] + NEW_TOKENS <= spec.hp.context]


def _best(spec: TinySpec, name: str, length: int, model: Any, tokenizer: Any) -> Golden:  # noqa: ANN401
    """Of several prompts the one whose answer rounding can change least.

    Raises:
        ValueError: the reference answers otherwise with a cache than without.
    """
    best: tuple[list[int], float] | None = None
    text, prompt = "", []
    for number in range(CANDIDATES[name]):
        tried = _text(spec.seed, name, number, length, tokenizer)
        ids = tokenizer.encode(tried).ids
        # A prompt is given up at the first token that is less certain than all of the best's.
        found = greedy(model, ids, NEW_TOKENS, best[1] if best else 0.0)
        if found is not None:
            best, text, prompt = found, tried, ids
    if best is None:
        raise ValueError(f"golden {name}: every prompt's answer has two equally likely tokens")
    return _golden_of(name, text, prompt, best[0], model, tokenizer)


def _text(seed: int, name: str, number: int, length: int, tokenizer: Any) -> str:  # noqa: ANN401
    """Words at random, as many as make about `length` tokens, at least so many."""
    chooser = random.Random(f"{seed} {name} {number}")
    words = [chooser.choice(WORDS).capitalize()]
    while len(tokenizer.encode(" ".join(words)).ids) < length:
        missing = length - len(tokenizer.encode(" ".join(words)).ids)
        words += [chooser.choice(WORDS) for _ in range(max(1, missing // 4))]
    return " ".join(words)


def _golden_of(
    name: str,
    text: str,
    prompt: list[int],
    tokens: list[int],
    model: Any,  # noqa: ANN401
    tokenizer: Any,  # noqa: ANN401
) -> Golden:
    """With the log-probabilities of one pass over all tokens, without a cache."""
    rows = log_probabilities(model, prompt + tokens[:-1])[len(prompt) - 1 :]
    best = rows.topk(TOP, dim=-1)
    if best.indices[:, 0].tolist() != tokens:
        raise ValueError(f"golden {name}: the reference answers otherwise with a cache")
    top = tuple(
        tuple((int(n), round(float(p), 6)) for n, p in zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    return Golden(
        name=name,
        text=text,
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        answer=tokenizer.decode(tokens, skip_special_tokens=False),
        logprobs=tuple(step[0][1] for step in top),
        top=top,
        margin=round(float((best.values[:, 0] - best.values[:, 1]).min()), 6),
    )
