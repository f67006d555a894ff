#!/usr/bin/env python3
"""Keep what a GPU run gathered, compare it, and write the results and their page.

    python tests/gpu/serve/results.py merge DIR     # DIR: the run's --out
    python tests/gpu/serve/results.py again DIR     # loads that fewer servers were measured under
    python tests/gpu/serve/results.py write         # compare again, from what is kept

Answers are kept in build/serve (not in git: they are large); benchmarks/results/serve-h200.json
and docs/serving.md are made from them.
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


def merge(folder: Path) -> None:
    """Add a run's answers, references and measurements to what is kept."""
    KEPT.mkdir(parents=True, exist_ok=True)
    commit = text_of(folder / "commit").strip()
    for name in ("answers", "reference"):
        before = read(KEPT / f"{name}.json")
        kept = before | gathered(before, read(folder / f"{name}.json"), commit)
        (KEPT / f"{name}.json").write_text(json.dumps(kept))
    before, about = read(KEPT / "about.json"), read(folder / "about.json")
    commands = [*before.get("command", "").split("; "), about.get("command", "")]
    about["command"] = "; ".join(dict.fromkeys(command for command in commands if command))
    commits = [*before.get("commit", "").split("; "), commit]
    about["commit"] = "; ".join(dict.fromkeys(commit for commit in commits if commit))
    about["versions"] = {**before.get("versions", {}), **about.get("versions", {})}
    (KEPT / "about.json").write_text(json.dumps(about))
    for name in ("throughput", "profile"):
        if (folder / f"{name}.json").is_file():
            now = [{"commit": commit} | row for row in rows_of(folder / f"{name}.json")]
            rows = measured(rows_of(KEPT / f"{name}.json"), now)
            (KEPT / f"{name}.json").write_text(json.dumps(rows))
    if len({row["impl"] for row in rows_of(folder / "throughput.json")}) == len(cases.THROUGHPUT):
        (KEPT / "again.json").unlink(missing_ok=True)


def gathered(before: Document, now: Document, commit: str) -> Document:
    """Answers of now that were not there before, with their commit.

    A run starts with what is kept, and leaves that beside what it asked.
    """
    return {
        name: found | {"commit": commit}
        for name, found in now.items()
        if found | {"commit": ""} != before.get(name, {}) | {"commit": ""}
    }


def again(folder: Path) -> None:
    """Keep a run's throughput beside what is kept, until all servers are measured under all loads.

    `merge` would leave these loads with the servers of this run alone.
    """
    about = {
        "commit": text_of(folder / "commit").strip(),
        "command": read(folder / "about.json").get("command", ""),
    }
    rows = [about | row for row in rows_of(folder / "throughput.json")]
    (KEPT / "again.json").write_text(json.dumps(rows))


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


def document() -> Document:
    """The results: comparisons, measurements, and what each case was."""
    answers, about = read(KEPT / "answers.json"), read(KEPT / "about.json")
    references = read(KEPT / "reference.json")
    answers = {name: answers[name] for name in cases.ALL if name in answers}
    found = parity.rows(
        {name: kept["answer"] for name, kept in answers.items()},
        {topk: kept["answers"] for topk, kept in references.items()},
    )
    return {
        "device": about.get("device", ""),
        "versions": about.get("versions", {}),
        "command": about.get("command", ""),
        "commit": about.get("commit", ""),
        "cases": {name: case_row(name, kept) for name, kept in answers.items()},
        "parity": found,
        "judged": parity.judged(found),
        "throughput": rows_of(KEPT / "throughput.json"),
        "profile": rows_of(KEPT / "profile.json"),
        "again": rows_of(KEPT / "again.json"),
    }


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


def write() -> None:
    """Write the results and the page."""
    found = document()
    RESULTS.write_text(compact(found))
    PAGE.write_text(page.text(found))
    print(parity.table(found["parity"]))


def main(what: str, *given: str) -> None:
    if what not in ("merge", "again", "write"):
        raise SystemExit(__doc__)
    if what == "merge":
        merge(Path(given[0]))
    if what == "again":
        again(Path(given[0]))
    write()


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
