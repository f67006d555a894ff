"""golden.json: prompts, and the greedy tokens and log-probabilities of the reference after them."""

from __future__ import annotations

import copy
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
CANDIDATES: Mapping[str, int] = {"short": 24, "medium": 8, "long": 4}
"""Prompts tried of each, of which the best is taken."""
PACKAGES = ("torch", "transformers", "tokenizers")
"""What computes them."""
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
        rounding: the most by which the reference's log-probabilities of `tokens` move when it
            computes in bf16.
    """

    name: str
    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    answer: str
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    margin: float
    rounding: float


def check(spec: TinySpec, device: str) -> None:
    """Whether golden tokens can be computed, before a model is made for them.

    Raises:
        MissingPackageError: torch, transformers or tokenizers is not installed.
        ValueError: no prompt fits the context, or there is no GPU that torch could use.
    """
    if not _lengths(spec):
        raise ValueError(
            f"the context of {spec.hp.context} tokens holds no prompt and its {NEW_TOKENS} golden "
            "tokens; give --context more, or --no-golden"
        )
    torch, *_ = (package(name, "golden tokens", "--no-golden") for name in PACKAGES)
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch has no GPU here; leave it out, or --no-golden")


def write_golden(
    folder: Path,
    spec: TinySpec,
    paths: Iterable[Path],
    say: Callable[[str], None] = print,
    device: str = "cpu",
) -> Path:
    """Compute golden.json from the files in `folder`.

    Args:
        folder: with tokenizer.json.
        spec: the model.
        paths: its GGUF files.
        say: told of every prompt.
        device: where the reference computes; a model with real widths takes hours on a CPU.

    Raises:
        MissingPackageError: as `check`, or gguf is not installed.
        ValueError: as `check`, or the reference's answers are not fit for it.
    """
    check(spec, device)
    torch, transformers, tokenizers = (package(name, "golden tokens") for name in PACKAGES)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tensors = read_tensors(paths)
    model = build_model(config(spec), tensors, spec.hp, spec.pattern).to(device)
    tools = _Tools(model, copy.deepcopy(model).to(torch.bfloat16), tokenizer)
    goldens = [_best(spec, name, length, tools) for name, length in _lengths(spec)]
    for each in goldens:
        say(
            f"golden {each.name}: {len(each.prompt)} tokens, margin {each.margin:.2f}, bf16 moves "
            f"it {each.rounding:.2f}: {each.answer!r}"
        )
    document = {
        "format": FORMAT,
        "model": spec.name,
        "reference": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "dtype": "float32 on dequantised weights",
            "device": device,
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


@dataclass(frozen=True)
class _Tools:
    """The reference in float32 and in bf16, and the tokenizer."""

    model: Any
    rounded: Any
    tokenizer: Any


@dataclass(frozen=True)
class _Answer:
    """A prompt and its greedy tokens, with their margin, and whether bf16 answers so too and the
    tokens are not the same few over and over."""

    text: str
    prompt: list[int]
    tokens: list[int]
    margin: float
    good: bool


def _best(spec: TinySpec, name: str, length: int, tools: _Tools) -> Golden:
    """Of several prompts the one whose answer rounding can change least.

    Raises:
        ValueError: the reference answers otherwise with a cache than without.
    """
    best: _Answer | None = None
    for number in range(CANDIDATES[name]):
        text = _text(spec.seed, name, number, length, tools.tokenizer)
        # A prompt is given up at the first token that is less certain than all of the best's.
        found = _answer(text, tools, best.margin if best and best.good else 0.0)
        if found and (best is None or (found.good, found.margin) > (best.good, best.margin)):
            best = found
    if best is None:
        raise ValueError(f"golden {name}: every prompt's answer has two equally likely tokens")
    return _golden_of(name, best, tools)


def _answer(text: str, tools: _Tools, least: float) -> _Answer | None:
    prompt = tools.tokenizer.encode(text).ids
    found = greedy(tools.model, prompt, NEW_TOKENS, least)
    if found is None:
        return None
    tokens, margin = found
    firm = _rows(tools.rounded, prompt, tokens).argmax(-1).tolist() == tokens
    varied = len(set(tokens)) > NEW_TOKENS / 2
    return _Answer(text, prompt, tokens, margin, firm and varied)


def _rows(model: Any, prompt: list[int], tokens: list[int]) -> Any:  # noqa: ANN401
    """Log-probabilities [tokens, vocab] at each step of an answer, in one pass, without a cache."""
    return log_probabilities(model, prompt + tokens[:-1])[len(prompt) - 1 :]


def _text(seed: int, name: str, number: int, length: int, tokenizer: Any) -> str:  # noqa: ANN401
    """Words at random, as many as make about `length` tokens, at least so many."""
    chooser = random.Random(f"{seed} {name} {number}")
    words = [chooser.choice(WORDS).capitalize()]
    while len(tokenizer.encode(" ".join(words)).ids) < length:
        missing = length - len(tokenizer.encode(" ".join(words)).ids)
        words += [chooser.choice(WORDS) for _ in range(max(1, missing // 4))]
    return " ".join(words)


def _golden_of(name: str, answer: _Answer, tools: _Tools) -> Golden:
    tokens = answer.tokens
    rows = _rows(tools.model, answer.prompt, tokens)
    rounded = _rows(tools.rounded, answer.prompt, tokens)
    best = rows.topk(TOP, dim=-1)
    if best.indices[:, 0].tolist() != tokens:
        raise ValueError(f"golden {name}: the reference answers otherwise with a cache")
    top = tuple(
        tuple((int(n), round(float(p), 6)) for n, p in zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    moved = (rows - rounded).gather(1, best.indices[:, :1]).abs()
    return Golden(
        name=name,
        text=answer.text,
        prompt=tuple(answer.prompt),
        tokens=tuple(tokens),
        answer=tools.tokenizer.decode(tokens, skip_special_tokens=False),
        logprobs=tuple(step[0][1] for step in top),
        top=top,
        margin=round(float((best.values[:, 0] - best.values[:, 1]).min()), 6),
        rounding=round(float(moved.max()), 6),
    )
