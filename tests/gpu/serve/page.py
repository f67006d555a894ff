"""docs/serving.md from benchmarks/results/serve-h200.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from . import cases, model
from .parity import ALONE, REFERENCE

Row = dict[str, Any]
AIM = 0.95  # of stock's tokens a second

TEXT = """\
# Serving, compared with stock vLLM

The plugin in unmodified vLLM {vllm} on {device}: our attention backend and our indexer, forced for
both, against vLLM's own sparse MLA backends with DeepGEMM's indexer. `flashmla` is
FLASHMLA_SPARSE, `flashattn` FLASH_ATTN_MLA_SPARSE.

The model is a small `glm_moe_dsa` with fixed random weights ({layers} layers, {heads} heads,
GLM-5's own head dims and indexer), shaped so that the attention is sharp and its selection
matters: random selection instead of the indexer's moves log-probabilities by 0.71 on average (1,200
tokens, top-k 512, transformers on a CPU), 1 % of it wrong by 0.14, all of transformers in bf16 by
0.12. Prompts have 10, 400, 2,000, 5,000 and 12,000 tokens; every position of every prompt is
compared, and 48 decoded tokens after each, on the same continuation.

## The same answers

Mean difference of log-probabilities (absolute, in nats) from transformers in float32, over all
positions. *ratio*: ours over the larger of what stock's backends with the same cache and top-k
have; 1 is as near to the reference as stock.{reference_note}

Names of cases: `k512` has a top-k of 512, `spec` drafts by n-gram look-up, `mqa` forces MQA, `tp2`
has two GPUs; all of it is under [What was started](#what-was-started).

`ours-fp8-invariant` forces MQA: prompts that are shorter than the top-k then go through the fp8
cache, too, where the stock case beside it answers them by dense attention. With a top-k of 512 the
fp8 cases of both force it.

{reference}

Against stock itself, the yardstick being what stock's two backends differ by in bf16 (for fp8:
stock's fp8 from stock's bf16).

{stock}

All differences, with the largest, and the first token that another choice was made for, are in
`benchmarks/results/serve-h200.json`.

## Alone and among 64

The first {alone} of 64 requests of 12 to 5,000 tokens, half of them with a common beginning, asked
alone and then among all 64. Kernels of stock vLLM (matrix products, experts) round differently in
another batch, and vLLM decides by the whole batch whether short prompts go to dense attention.
Rows named `invariant` ran with `VLLM_BATCH_INVARIANT=1`, which no stock sparse backend allows and
ours does, and with `sparse_mla_force_mqa`. Our attention then gives the same bits in any batch, as
its tests show; what still differs in these rows comes from elsewhere and was not traced.

{crowd}

## What was started

{started}

## Throughput

`vllm bench serve`, random prompts, {output} output tokens each; output tokens a second, medians
over rounds in one run, all servers started alike, one measured at a time. In brackets the share of
the best stock backend with the same cache: the median of the rounds, and the least and the most.
{rounds}
One request alone, and prompts of 1,000 tokens, wait for the processor more than for the GPU, and so
depend on what else the machine does; single rounds fell behind under other loads, too, and why was
not found out. What steps take of the GPU alone is [below](#kernels). fp8 is compared with fp8,
which stock serves by FLASHMLA_SPARSE alone, slower than its best in bf16.

{throughput}

Median time to the first token, ms:

{latency}
{again}
## Kernels

By vLLM's torch profiler, µs for each step of the engine that runs the model: the time in which the
GPU works, whatever the processor does between. Decode of prompts that the prefix cache holds, but
for their last block, which one of the steps computes; prefill of new ones; mixed: new ones that
begin while others decode. In brackets how many steps a figure is the mean of.{kernels_of}

{kernels}

## Again

    tests/gpu/serve/prepare.sh                         # the plugin's wheel, into build/serve
    python3 tests/gpu/serve/run.py --part stock --part ours --out DIR
    python3 tests/gpu/serve/run.py --part throughput --out DIR     # and --part profile
    python3 tests/gpu/serve/run.py --part tp2 --out DIR    # two GPUs
    python3 tests/gpu/serve/results.py merge DIR           # after each; writes this page

Cases that `build/serve` has answers for are not started again.
"""


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    if not body:
        return "Not measured yet."
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Four decimals, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def pair(found: Sequence[Row], case: str, against: str, key: str) -> list[str]:
    """A figure of the prompt row and of the decode row."""
    chosen = {
        row["what"]: row for row in found if row["case"] == case and row["against"] == against
    }
    return [number(chosen[what][key]) if what in chosen else "–" for what in ("prompt", "decode")]


def ratios(judged: Sequence[Row], case: str, against: str) -> list[str]:
    """Ours over the yardstick, prompt and decode."""
    chosen = {
        row["what"]: row["ratio"]
        for row in judged
        if row["case"] == case and row["against"] == against
    }
    return [f"{chosen[what]:.2f}" if what in chosen else "" for what in ("prompt", "decode")]


def reference_table(document: Row) -> str:
    """Every case against float32."""
    body = []
    for name in document["cases"]:
        mean = pair(document["parity"], name, REFERENCE, "mean_abs_dlogp")
        most = pair(document["parity"], name, REFERENCE, "max_abs_dlogp")
        share = ratios(document["judged"], name, REFERENCE)
        if mean != ["–", "–"]:
            body.append([name, mean[0], most[0], share[0], mean[1], most[1], share[1]])
    head = ["case", "prompt: mean", "max", "ratio", "decode: mean", "max", "ratio"]
    return table(head, body)


def stock_table(document: Row) -> str:
    """Pairs of cases, ours and the yardsticks."""
    body = []
    seen = dict.fromkeys((row["case"], row["against"]) for row in document["parity"])
    for case, against in seen:
        if against in (REFERENCE, ALONE):
            continue
        mean = pair(document["parity"], case, against, "mean_abs_dlogp")
        share = ratios(document["judged"], case, against)
        firsts = [
            row["first_divergence"]
            for row in document["parity"]
            if (row["case"], row["against"], row["what"]) == (case, against, "decode")
        ]
        first = "–" if firsts[0] is None else str(firsts[0])
        body.append([case, against, mean[0], share[0], mean[1], share[1], first])
    head = ["case", "against", "prompt", "ratio", "decode", "ratio", "first other token"]
    return table(head, body)


def crowd_table(document: Row) -> str:
    """Same tokens, and the differences up to the first that differs."""
    body = [
        [
            row["case"],
            f"{row['same_tokens']} of {row['requests']}",
            number(row["mean_abs_dlogp"]),
            number(row["max_abs_dlogp"]),
        ]
        for row in document["parity"]
        if row["what"] == "crowd"
    ]
    return table(["case", "same tokens", "mean difference", "largest"], body)


def started_table(document: Row) -> str:
    """The pairwise table of what was started."""
    body = []
    for name, row in document["cases"].items():
        yes = {True: "yes", False: "–"}
        body.append(
            [
                name,
                ", ".join(row["served_by"]),
                row["kv"],
                "graphs" if row["graphs"] else "eager",
                yes[row["prefix"]],
                str(row["chunk"]),
                str(row["topk"]),
                yes[row["mqa"]],
                str(row["drafts"] or "–"),
                str(row["tensor_parallel"]),
            ]
        )
    head = ["case", "served by", "KV", "mode", "prefix cache", "chunk", "top-k"]
    return table([*head, "force MQA", "drafts", "GPUs"], body)


def kernels_note(found: Row) -> str:
    """Which sources of ours cases ran with, where a run was in parts; most of them come first."""
    groups: dict[str, list[str]] = {}
    for name, row in found.items():
        if row.get("kernels"):
            groups.setdefault(row["kernels"], []).append(name)
    most, *others = sorted(groups.values(), key=len, reverse=True) or [[]]
    said = [f"Ours ran with the kernels of {of_commit(found, most)}."] if most else []
    for names in others:
        listed = ", ".join(f"`{name}`" for name in names)
        said.append(f"{listed} ran with those of {of_commit(found, names)}.")
    return "\n\n" + "\n".join(said) if said else ""


def of_commit(found: Row, names: Sequence[str]) -> str:
    """What these cases are of."""
    named = commits([found[name] for name in names])
    return f"commit {named}" if named else "a commit that was not noted"


def commits(rows: Sequence[Row]) -> str:
    """Each commit of rows once."""
    return ", ".join(dict.fromkeys(f"`{row['commit'][:8]}`" for row in rows if row.get("commit")))


Load = tuple[int, int]


def by_load(rows: Sequence[Row]) -> dict[Load, dict[str, Row]]:
    """Rows of the servers, by requests at a time and tokens of a prompt."""
    found: dict[Load, dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["concurrency"], row["prompt_tokens"]), {})[row["impl"]] = row
    return found


def shares(found: dict[str, Row], name: str) -> list[float]:
    """Ours over the best stock backend with the same cache, round by round; none without it."""
    if not cases.ALL[name].ours:
        return []
    rivals = [
        found[peer]
        for peer in found
        if not cases.ALL[peer].ours and cases.ALL[peer].kv == cases.ALL[name].kv
    ]
    if not rivals:
        return []
    best = max(rivals, key=lambda row: float(row["tokens_per_s"]))
    return [a / b for a, b in zip(found[name]["rounds"], best["rounds"], strict=False)]


def again_section(document: Row) -> str:
    """Loads that were measured once more, with later sources and fewer servers."""
    rows = document.get("again", [])
    if not rows:
        return ""
    found = {"throughput": rows}
    return (
        f"\n### Some loads again\n\nWith later sources ({commits(rows)}), in a run of their own "
        f"beside the best stock backend.\n{rounds_note(rows)} Tokens a second:\n\n"
        f"{loads_table(found, 'tokens_per_s', True)}\n\nMedian time to the first token, ms:\n\n"
        f"{loads_table(found, 'ttft_ms', False)}\n"
    )


def loads_table(document: Row, key: str, share: bool) -> str:
    """A row for each load, a column for each server."""
    loads = by_load(document["throughput"])
    names = [name for name in cases.THROUGHPUT if any(name in found for found in loads.values())]
    body = []
    for (concurrency, prompt), found in loads.items():
        cells = []
        for name in names:
            text = f"{found[name][key]:.0f}" if name in found else "–"
            rounds = shares(found, name) if share and name in found else []
            if rounds:
                text += f" ({statistics.median(rounds):.2f}, {min(rounds):.2f}–{max(rounds):.2f})"
            cells.append(text)
        body.append([f"{concurrency} × {prompt:,}", *cells])
    return table(["requests × tokens", *names], body)


def rounds_note(rows: Sequence[Row]) -> str:
    """Of what model, how many rounds, and where the aim is missed."""
    if not rows:
        return ""
    layers = rows[0].get("layers", model.LAYERS)
    least = min(len(row["rounds"]) for row in rows)
    missed = [
        f"{name} at {load[0]} × {load[1]:,}"
        for load, found in by_load(rows).items()
        for name in found
        if (rounds := shares(found, name)) and statistics.median(rounds) < AIM
    ]
    note = f"The model has {layers} layers here; {least} {'round' if least == 1 else 'rounds'}."
    aim = f"The aim is {AIM}"
    return f"{note} {aim}; it is missed by {', '.join(missed)}." if missed else f"{note} {aim}."


def commits_note(rows: Sequence[Row]) -> str:
    """Which sources of ours rows were measured with."""
    named = commits(rows)
    return f" Ours: commit {named}." if named else ""


CACHE = "concat_and_cache"
"""In the name of the kernel that each layer calls once in a step, whatever the backend."""


def ran(rows: Sequence[Row]) -> float:
    """Of the steps that vLLM marked under one load, the share that ran the model: some are empty.

    Args:
        rows: of all servers; not everyone's longest kernels hold the one that is counted.
    """
    for row in rows:
        calls = sum(each["calls"] for each in row["kernels"] if CACHE in each["name"])
        if calls:
            return round(calls * row["steps"] / row["layers"]) / row["steps"]
    return 1.0


def kernels_table(rows: Sequence[Row]) -> str:
    """A row for each load, a column for each server."""
    found = {(r["what"], r["concurrency"], r["prompt_tokens"], r["impl"]): r for r in rows}
    names = [name for name in cases.THROUGHPUT if any(name == key[3] for key in found)]
    body = []
    for load in dict.fromkeys(key[:3] for key in found):
        same = {name: found[*load, name] for name in names if (*load, name) in found}
        # One with the count comes first: the servers' steps are the same.
        share = {name: ran([row, *same.values()]) for name, row in same.items()}
        cells = [f"{same[name]['busy_us'] / share[name]:,.0f}" if name in same else "–"
                 for name in names]  # fmt: skip
        steps = [round(row["steps"] * share[name]) for name, row in same.items()]
        counted = "–".join(str(each) for each in dict.fromkeys((min(steps), max(steps))))
        body.append([f"{load[0]}, {load[1]} × {load[2]:,} ({counted})", *cells])
    return table(["load", *names], body)


def text(document: Row) -> str:
    """The whole page."""
    about = document["versions"]
    lengths = {
        length
        for row in document["parity"]
        if row["against"] == REFERENCE
        for length in row.get("by_prompt", {})
    }
    return TEXT.format(
        vllm=about.get("vllm", "0.26.0"),
        device=document["device"].split(",")[0] or "an H200",
        layers=model.LAYERS,
        heads=model.HEADS,
        reference_note="" if lengths else " Not measured yet.",
        reference=reference_table(document),
        stock=stock_table(document),
        alone=24,
        crowd=crowd_table(document),
        started=started_table(document) + kernels_note(document["cases"]),
        output=128,
        throughput=loads_table(document, "tokens_per_s", True),
        latency=loads_table(document, "ttft_ms", False),
        rounds=rounds_note(document["throughput"]) + commits_note(document["throughput"]),
        again=again_section(document),
        kernels=kernels_table(document.get("profile", [])),
        kernels_of=commits_note(document.get("profile", [])),
    )
