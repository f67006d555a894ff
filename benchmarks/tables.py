#!/usr/bin/env python3
"""Put the tables of ``results/*.json`` into docs/performance.md, between their markers.

.venv/bin/python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put_between(page: Path, name: str, text: str) -> None:
    """Replace what stands in a page between the marks `NAME: start` and `NAME: end`."""
    start, end = f"<!-- {name}: start -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    page.write_text(f"{before}{start}\n{text}\n{end}{after}")


def about(document: dict[str, Any]) -> str:
    """When and where it was measured."""
    machine, after = document["machine"], document["load_after"]
    return (
        f"{document['date']}, {machine['processor']}, {machine['cores']} cores; load "
        f"{machine['load_before'][0]} before and {after[0]} after."
    )


def orchestrator(document: dict[str, Any]) -> str:
    """Seconds and processor seconds of every program, and our share of each peer's."""
    parts = [f"{about(document)} Medians of {document['rounds']} rounds."]
    for field, title in (("seconds", "seconds"), ("processor", "processor seconds")):
        values, ratios = document[field]["values"], document[field]["ratios"]
        columns = [(what, hosts) for what in values for hosts in values[what]]
        body = []
        for name, version in document["versions"].items():
            cells = []
            for what, hosts in columns:
                text = f"{values[what][hosts][name]['median']:.2f}"
                ratio = ratios[f"{what}/{hosts}"].get(name)
                cells.append(text if ratio is None else f"{text} (ours: {ratio:.2f} of it)")
            body.append([f"{name} {version}", *cells])
        head = [title, *(f"{w}, {h} host{'s' * (h != '1')}" for w, h in columns)]
        parts.append(rows(head, body))
    return "\n\n".join(parts)


def ssh(document: dict[str, Any]) -> str:
    """Connections and sessions that sshd counted on one host."""
    body = [
        [name, *(str(found[w][c]) for w in ("first", "noop") for c in ("connections", "sessions"))]
        for name, found in document["ssh_one_host"].items()
    ]
    return rows(
        ["program", "first: connections", "sessions", "noop: connections", "sessions"], body
    )


def verification(document: dict[str, Any]) -> str:
    """Rates in GB/s and the ratios."""
    rates = document["gb_per_second"]
    names = list(dict.fromkeys(name for row in rates.values() for name in row))
    body = [
        [state, *(f"{row[name]:.2f}" if name in row else "" for name in names)]
        for state, row in rates.items()
    ]
    ratios = "; ".join(f"{name}: {value:.2f}" for name, value in document["ratios"].items())
    size = f"{document['bytes'] / 1e9:.1f} GB in {document['files']} files"
    return f"{about(document)} {size}.\n\n{rows(['GB/s', *names], body)}\n\nOur share: {ratios}."


def filled(page: str, name: str, table: str) -> str:
    """The page with one table between its markers replaced.

    Raises:
        ValueError: the page has no such markers.
    """
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    new, count = re.subn(pattern, lambda m: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE}: no markers for {name}")
    return new


def main() -> None:
    page = PAGE.read_text()
    sources = {
        "orchestrator": [("orchestrator", orchestrator), ("ssh", ssh)],
        "verification": [("verification", verification)],
    }
    for source, tables in sources.items():
        path = HERE / "results" / f"{source}.json"
        if path.exists():
            for name, make in tables:
                page = filled(page, name, make(json.loads(path.read_text())))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
