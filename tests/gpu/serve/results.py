#!/usr/bin/env python3
"""Keep what a GPU run gathered, compare it, and write the results and their page.

    python tests/gpu/serve/results.py merge DIR     # DIR: the run's --out
    python tests/gpu/serve/results.py again DIR     # loads that fewer servers were measured under
    python tests/gpu/serve/results.py write         # compare again, from what is kept

Nothing is written where a folder is none of a run, or would take something off the record.
benchmarks/results/serve-h200.json is the record, and docs/serving.md is made from it. The answers
themselves are kept in build/serve (not in git: they are large); comparisons that need answers which
are not there stay as they were.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from serve import cases, page, parity  # noqa: E402

ROOT = HERE.parents[2]
KEPT = ROOT / "build" / "serve"
RESULTS = ROOT / "benchmarks" / "results" / "serve-h200.json"
PAGE = ROOT / "docs" / "serving.md"
ANSWERS = ("answers", "reference")
MEASUREMENTS = ("throughput", "profile")
Document = dict[str, Any]
Answers = dict[str, Document]


@dataclass(frozen=True)
class Run:
    """What a run of `run.py` gathered; answers and rows name its commit.

    Args:
        answers: and references.
        rows: what was measured.
    """

    about: Document
    answers: Answers
    rows: dict[str, list[Document]]


def read(path: Path) -> Document:
    """A JSON object, or nothing where there is none."""
    found = loaded(path, {})
    if not isinstance(found, dict):
        raise SystemExit(f"{path}: no JSON object")
    return found


def rows_of(path: Path) -> list[Document]:
    """A JSON list, or nothing where there is none."""
    found = loaded(path, [])
    if not isinstance(found, list):
        raise SystemExit(f"{path}: no JSON list")
    return found


def loaded(path: Path, without: object) -> object:
    """What a JSON file holds.

    Raises:
        SystemExit: it is not whole.
    """
    try:
        return json.loads(path.read_text()) if path.is_file() else without
    except ValueError as error:
        raise SystemExit(f"{path}: {error}") from None


def kept_answers() -> Answers:
    """Answers and references of earlier runs."""
    return {name: read(KEPT / f"{name}.json") for name in ANSWERS}


def read_run(folder: Path) -> Run:
    """What a run left.

    Raises:
        SystemExit: the folder is none of `run.py`, or nothing was gathered.
    """
    about = read(folder / "about.json")
    if "command" not in about:
        raise SystemExit(f"{folder}: no folder that tests/gpu/serve/run.py wrote (no about.json)")
    mine = {"commit": about.get("commit", "")}
    answers = {
        name: {each: mine | found for each, found in read(folder / f"{name}.json").items()}
        for name in ANSWERS
    }
    rows = {name: [mine | row for row in rows_of(folder / f"{name}.json")] for name in MEASUREMENTS}
    if not any((*answers.values(), *rows.values())):
        names = ", ".join(f"{name}.json" for name in (*answers, *rows))
        raise SystemExit(f"{folder}: nothing was gathered: none of {names}")
    return Run(about, answers, rows)


def merged(before: Document, kept: Answers, run: Run) -> tuple[Document, Answers]:
    """The record with a run's measurements, and what is kept with its answers.

    Raises:
        SystemExit: something that was measured would be lost.
    """
    found = before | {
        "device": run.about.get("device", ""),
        "command": joined(before.get("command", ""), run.about["command"]),
        "versions": before.get("versions", {}) | run.about.get("versions", {}),
    }
    for name, now in run.rows.items():
        found[name] = measured(before.get(name, []), now)
        refuse_losses(name, before.get(name, []), found[name])
    if {row["impl"] for row in run.rows["throughput"]} == set(cases.THROUGHPUT):
        found["again"] = []
    return found, {name: kept.get(name, {}) | run.answers[name] for name in ANSWERS}


def refuse_losses(name: str, before: list[Document], after: list[Document]) -> None:
    """Raise SystemExit where a server's measurement under a load would be gone."""
    left = {(load_of(row), row["impl"]) for row in after}
    lost = {(load_of(row), row["impl"]) for row in before} - left
    if lost:
        names = ", ".join(sorted({impl for _, impl in lost}))
        raise SystemExit(
            f"{name}: {len(lost)} measurements of the record ({names}) would be gone: fewer servers"
            " or loads than it has; `again` puts them beside it"
        )


def joined(*given: str) -> str:
    """Each part of texts that are joined by semicolons, once."""
    return "; ".join(dict.fromkeys(part for text in given for part in text.split("; ") if part))


def again(run: Run) -> list[Document]:
    """A run's throughput, to stand beside the record until all servers are measured again.

    Raises:
        SystemExit: it did not measure that.
    """
    if not run.rows["throughput"]:
        raise SystemExit("no throughput.json: nothing was measured")
    return [{"command": run.about["command"]} | row for row in run.rows["throughput"]]


def load_of(row: Document) -> tuple[Any, ...]:
    """What a measurement is of."""
    return row.get("what", ""), row["prompt_tokens"], row["concurrency"]


def measured(before: list[Document], now: list[Document]) -> list[Document]:
    """Rows of now, and those of before under other loads on the same model.

    Servers are compared within one run alone: a load that was measured again has no row of before.
    """
    if not now:
        return before
    loads, layers = {load_of(row) for row in now}, now[0].get("layers")
    kept = [r for r in before if load_of(r) not in loads and r.get("layers") == layers]
    return [*kept, *now]


def document(before: Document, kept: Answers) -> Document:
    """The record with what the answers that are kept say: cases, comparisons and verdicts."""
    answers = {name: kept["answers"][name] for name in cases.ALL if name in kept["answers"]}
    of_cases = before.get("cases", {}) | {name: case_row(name, answers[name]) for name in answers}
    rows = parity.rows(
        {name: each["answer"] for name, each in answers.items()},
        {topk: each["answers"] for topk, each in kept["reference"].items()},
    )
    found = compared(before.get("parity", []), rows)
    measurements = {name: before.get(name, []) for name in (*MEASUREMENTS, "again")}
    used = [*of_cases.values(), *(row for rows in measurements.values() for row in rows)]
    return {
        "device": before.get("device", ""),
        "versions": before.get("versions", {}),
        "command": before.get("command", ""),
        "commit": joined(*(row.get("commit", "") for row in used)),
        "cases": {name: of_cases[name] for name in cases.ALL if name in of_cases},
        "parity": found,
        "judged": parity.judged(found),
        **measurements,
    }


def compared(before: list[Document], now: list[Document]) -> list[Document]:
    """Comparisons of now, and those of before whose answers are not here, in the cases' order."""
    rows = {(row["case"], row["against"], row["what"]): row for row in [*before, *now]}
    names = {name: number for number, name in enumerate(cases.ALL)}
    return sorted(
        (row for row in rows.values() if row["case"] in names), key=lambda row: names[row["case"]]
    )


def case_row(name: str, kept: Document) -> Document:
    """What was started, what served, and how much of its prompts the prefix cache held."""
    follow = kept["answer"]["follow"]
    return {
        **asdict(cases.ALL[name]),
        "commit": kept.get("commit", ""),
        "kernels": json.loads(kept["fingerprint"]).get("kernels"),
        "served_by": kept["backends"],
        "start_seconds": kept["start_seconds"],
        "cached_tokens": {length: found["cached"] for length, found in follow.items()},
        "notes": kept["notes"],
    }


def compact(value: Document) -> str:
    """JSON with one row a line, so that a new run shows what changed."""
    text = json.dumps(value, indent=1)
    inner = r"\{\n   [^\n]*(?:\n   [^\n]*)*?\n  \}"
    return re.sub(inner, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"


def write(before: Document, kept: Answers) -> None:
    """Write the record, its page and what is kept; all of them or, where one is wrong, none."""
    found = document(before, kept)
    text = page.text(found)
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in ANSWERS:
        (KEPT / f"{name}.json").write_text(json.dumps(kept[name]))
    RESULTS.write_text(compact(found))
    PAGE.write_text(text)
    print(parity.table(found["parity"]))


def main(argv: Sequence[str] | None = None) -> None:
    summary, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("merge", "again"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("write")
    options = parser.parse_args(argv)
    before, kept = read(RESULTS), kept_answers()
    if options.what == "merge":
        before, kept = merged(before, kept, read_run(options.folder))
    elif options.what == "again":
        before |= {"again": again(read_run(options.folder))}
    elif not before:
        raise SystemExit(f"{RESULTS}: there is no record to write the page of")
    write(before, kept)


if __name__ == "__main__":
    main()
