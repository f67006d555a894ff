#!/usr/bin/env python3
"""Keep what a GPU run gathered, compare it, and write the results and their page.

    python tests/gpu/serve/results.py merge DIR     # DIR: the run's --out
    python tests/gpu/serve/results.py again DIR     # loads that fewer servers were measured under
    python tests/gpu/serve/results.py write         # compare again, from what is kept

benchmarks/results/serve-h200.json is the record, and docs/serving.md is made from it. The answers
themselves are kept in build/serve (not in git: they are large); comparisons that need answers which
are not there stay as they were.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from serve import cases, page, parity  # noqa: E402

ROOT = HERE.parents[2]
KEPT = ROOT / "build" / "serve"
RESULTS = ROOT / "benchmarks" / "results" / "serve-h200.json"
PAGE = ROOT / "docs" / "serving.md"
Document = dict[str, Any]


def read(path: Path) -> Document:
    """A JSON file, or nothing where there is none."""
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def merge(folder: Path) -> Document:
    """The results with a run's measurements; its answers and references are kept."""
    commit, about = text_of(folder / "commit").strip(), read(folder / "about.json")
    keep(folder, commit)
    found = read(RESULTS)
    found["device"] = about.get("device", found.get("device", ""))
    found["command"] = joined(found.get("command", ""), about.get("command", ""))
    found["versions"] = found.get("versions", {}) | about.get("versions", {})
    for name in ("throughput", "profile"):
        now = [{"commit": commit} | row for row in rows_of(folder / f"{name}.json")]
        found[name] = measured(found.get(name, []), now)
    if len({row["impl"] for row in rows_of(folder / "throughput.json")}) == len(cases.THROUGHPUT):
        found["again"] = []
    return found


def keep(folder: Path, commit: str) -> None:
    """Add a run's answers and references to those that are kept."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in ("answers", "reference"):
        before = read(KEPT / f"{name}.json")
        kept = before | gathered(before, read(folder / f"{name}.json"), commit)
        (KEPT / f"{name}.json").write_text(json.dumps(kept))


def joined(*given: str) -> str:
    """Each part of texts that are joined by semicolons, once."""
    return "; ".join(dict.fromkeys(part for text in given for part in text.split("; ") if part))


def gathered(before: Document, now: Document, commit: str) -> Document:
    """Answers of now that were not there before, with their commit.

    A run starts with what is kept, and leaves that beside what it asked.
    """
    return {
        name: found | {"commit": commit}
        for name, found in now.items()
        if found | {"commit": ""} != before.get(name, {}) | {"commit": ""}
    }


def again(folder: Path) -> Document:
    """The results with a run's throughput beside them, until all servers are measured again.

    `merge` would leave these loads with the servers of this run alone.
    """
    about = {
        "commit": text_of(folder / "commit").strip(),
        "command": read(folder / "about.json").get("command", ""),
    }
    rows = [about | row for row in rows_of(folder / "throughput.json")]
    return read(RESULTS) | {"again": rows}


def text_of(path: Path) -> str:
    """A file's text, or nothing where there is none."""
    return path.read_text() if path.is_file() else ""


def rows_of(path: Path) -> list[Document]:
    """A JSON list, or nothing where there is none."""
    return list(json.loads(path.read_text())) if path.is_file() else []


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


def document(before: Document) -> Document:
    """The results with what the answers that are kept say: cases, comparisons and verdicts."""
    answers, references = read(KEPT / "answers.json"), read(KEPT / "reference.json")
    answers = {name: answers[name] for name in cases.ALL if name in answers}
    of_cases = before.get("cases", {}) | {name: case_row(name, answers[name]) for name in answers}
    rows = parity.rows(
        {name: kept["answer"] for name, kept in answers.items()},
        {topk: kept["answers"] for topk, kept in references.items()},
    )
    found = compared(before.get("parity", []), rows)
    measurements = {name: before.get(name, []) for name in ("throughput", "profile", "again")}
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


def write(before: Document) -> None:
    """Write the results and the page."""
    found = document(before)
    RESULTS.write_text(compact(found))
    PAGE.write_text(page.text(found))
    print(parity.table(found["parity"]))


def main(what: str, *given: str) -> None:
    if what == "merge":
        write(merge(Path(given[0])))
    elif what == "again":
        write(again(Path(given[0])))
    elif what == "write":
        write(read(RESULTS))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
