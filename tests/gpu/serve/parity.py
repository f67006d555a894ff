"""Comparing answers: plain functions over what `ask` gathered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .cases import ALL, Case, peers

Answer = dict[str, Any]
Row = dict[str, Any]
ALONE = "the same, alone"
REFERENCE = "float32"


def summary(differences: Sequence[float]) -> Row:
    """Largest, mean and 99th percentile of |Δ log p|, and of how many values."""
    if not differences:
        return {"max_abs_dlogp": None, "mean_abs_dlogp": None, "p99_abs_dlogp": None, "values": 0}
    ordered = sorted(differences)
    return {
        "max_abs_dlogp": round(ordered[-1], 5),
        "mean_abs_dlogp": round(sum(ordered) / len(ordered), 5),
        "p99_abs_dlogp": round(ordered[int(0.99 * (len(ordered) - 1))], 5),
        "values": len(ordered),
    }


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def prompt_row(one: Answer, other: Answer) -> Row:
    """Every position of every prompt: what prefill computes."""
    by_prompt = {}
    everything: list[float] = []
    for name in one["prompt"]:
        if name not in other["prompt"]:
            continue
        pairs = zip(one["prompt"][name], other["prompt"][name], strict=True)
        differences = [abs(a - b) for a, b in pairs]
        everything += differences
        by_prompt[name] = _short(differences)
    return {
        "what": "prompt",
        **summary(everything),
        "first_divergence": None,
        "by_prompt": by_prompt,
    }


def decode_row(one: Answer, other: Answer) -> Row:
    """Every decoded position of the given continuations, and the first where the choice differs.

    `first_divergence` is the smallest over the prompts, `by_prompt` has each prompt's.
    """
    by_prompt = {}
    everything: list[float] = []
    for name, mine in one["follow"].items():
        theirs = other["follow"].get(name)
        if theirs is None:
            continue
        differences = [abs(a - b) for a, b in _decoded(mine, theirs)]
        everything += differences
        first = first_difference(mine["own"], theirs["own"])
        by_prompt[name] = {**_short(differences), "first_divergence": first}
    firsts = [row["first_divergence"] for row in by_prompt.values()]
    known = [first for first in firsts if first is not None]
    return {
        "what": "decode",
        **summary(everything),
        "first_divergence": min(known, default=None),
        "by_prompt": by_prompt,
    }


def _decoded(mine: Answer, theirs: Answer) -> Iterable[tuple[float, float]]:
    """Pairs of log-probabilities that both got from decode steps."""
    rows = zip(mine["logp"], theirs["logp"], mine["decoded"], theirs["decoded"], strict=True)
    return [(a, b) for a, b, x, y in rows if x and y and a is not None and b is not None]


def _short(differences: Sequence[float]) -> Row:
    found = summary(differences)
    return {key: found[key] for key in ("max_abs_dlogp", "mean_abs_dlogp")}


def crowd_row(answer: Answer) -> Row:
    """Requests among 64 against the same requests alone, up to each one's first other token."""
    differences: list[float] = []
    firsts = []
    pairs = list(zip(answer["crowd"]["alone"], answer["crowd"]["together"], strict=True))
    for alone, together in pairs:
        first = first_difference(alone["tokens"], together["tokens"])
        firsts.append(first)
        both = list(zip(alone["logp"], together["logp"], strict=True))[:first]
        differences += [abs(a - b) for a, b in both]
    known = [first for first in firsts if first is not None]
    return {
        "what": "crowd",
        **summary(differences),
        "first_divergence": min(known, default=None),
        "requests": len(pairs),
        "same_tokens": firsts.count(None),
    }


def reference_answer(reference: Answer) -> Answer:
    """The float32 reference in the form of a server's answer; its decoding is all decoding."""
    follow = {
        name: {
            "own": found["tokens"],
            "logp": found["logp"],
            "decoded": [True] * len(found["tokens"]),
        }
        for name, found in reference.items()
    }
    return {
        "prompt": {name: found["prompt"] for name, found in reference.items()},
        "follow": follow,
    }


def rows(answers: Mapping[str, Answer], references: Mapping[str, Answer]) -> list[Row]:
    """All comparisons that the answers allow.

    Args:
        answers: by case name.
        references: by top-k, as a string: the reference's answers by prompt.
    """
    found: list[Row] = []
    compared: set[tuple[str, str]] = set()
    for name, answer in answers.items():
        case = ALL[name]
        against = {
            peer: answers[peer]
            for peer in peers(case)
            if peer in answers and (peer, name) not in compared
        }
        compared |= {(name, peer) for peer in against}
        if str(case.topk) in references:
            against[REFERENCE] = reference_answer(references[str(case.topk)])
        for peer, other in against.items():
            for row in (prompt_row(answer, other), decode_row(answer, other)):
                found.append({"case": name, "against": peer, **row})
        found.append({"case": name, "against": ALONE, **crowd_row(answer)})
    return found


def yardstick(case: Case, found: Sequence[Row], what: str, against: str) -> Row | None:
    """Stock's own difference that a row of ours is measured by.

    Against the reference: the largest that a stock case of the same cache and top-k has. Against
    stock: between the two stock backends in bf16; fp8: between stock's fp8 and stock's bf16.
    """
    stock = [peer for peer in peers(case) if not ALL[peer].ours]
    same = [peer for peer in stock if ALL[peer].kv == case.kv]
    if against == REFERENCE:
        wanted = [row for row in found if row["case"] in same and row["against"] == REFERENCE]
    else:
        wanted = [row for row in found if row["case"] in stock and row["against"] in stock]
    values = [row for row in wanted if row["what"] == what and row["values"]]
    return max(values, key=lambda row: row["mean_abs_dlogp"], default=None)


def judged(found: Sequence[Row]) -> list[Row]:
    """Rows of ours beside their yardsticks, as ratios of means."""
    verdicts = []
    for row in found:
        case = ALL[row["case"]]
        if not case.ours or not row["values"] or row["what"] == "crowd":
            continue
        measure = yardstick(case, found, row["what"], row["against"])
        if measure is None or not measure["mean_abs_dlogp"]:
            continue
        verdicts.append(
            {
                "case": row["case"],
                "against": row["against"],
                "what": row["what"],
                "mean_abs_dlogp": row["mean_abs_dlogp"],
                "yardstick": f"{measure['case']} against {measure['against']}",
                "yardstick_mean": measure["mean_abs_dlogp"],
                "ratio": round(row["mean_abs_dlogp"] / measure["mean_abs_dlogp"], 3),
            }
        )
    return verdicts


def table(found: Sequence[Row]) -> str:
    """A short text for the terminal."""
    lines = [f"{'case':24}{'against':24}{'what':8}{'mean':>9}{'p99':>9}{'max':>9}  first"]
    for row in found:
        numbers = [row["mean_abs_dlogp"], row["p99_abs_dlogp"], row["max_abs_dlogp"]]
        text = "".join(f"{number:9.4f}" if number is not None else f"{'':9}" for number in numbers)
        more = f"  {row['same_tokens']}/{row['requests']} same" if row["what"] == "crowd" else ""
        first = row["first_divergence"]
        lines.append(
            f"{row['case']:24}{row['against']:24}{row['what']:8}{text}  "
            f"{'-' if first is None else first}{more}"
        )
    return "\n".join(lines)
