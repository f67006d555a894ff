"""docs/gpu-host.md and its results from walks on a GPU host.

python tests/gpu/host/page.py NAME=FOLDER[,FOLDER…] …    # one GPU: h200=host; two: h200-x2=host-tp2
python tests/gpu/host/page.py                            # the page again

FOLDERs are what `run.py` left; a walk that was cut off and continued has several. Writes
benchmarks/results/host-NAME.json.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "gpu-host.md"
EXPOSURE = re.compile(r"Overall exposure level for \S+: ([\d.]+)")
ALL_REDUCE = re.compile(r"Using (\[.*?\]) all-reduce backends .* for group 'tp:0'")
TRANSPORT = re.compile(r" via ((?:P2P|SHM|NET)\S*)")
OPEN_FILES = re.compile(r"Found ulimit of (\d+) and failed to automatically increase")
EXPLAINED = re.compile(r"^\w+: ([a-z-]+)  \(.*\)$", re.MULTILINE)
GPU = re.compile(r"(NVIDIA [\w -]+?)\s{2,}")
Document = dict[str, Any]

TEXT = """\
# The path on an H200

`tests/gpu/host/run.py` boots a host with systemd, sshd, journald and a GPU inside, makes a GLM-5 in
GGUF (Q8_0, three files, GLM-5's own widths, two layers, random weights) and walks the whole path
over SSH with the profile `glm-5`: our attention and indexer, fp8_ds_mla KV cache, the hardened unit
([what it leaves open](operations.md#the-services-sandbox)). Smoke compares golden tokens with
transformers' and sends a prompt beyond the 2,048 tokens that the indexer selects. The server ran
with `enforce-eager`; the first `up` also compiles every kernel for the doctor. On one GPU a mistake
in `serve.args` is `refused` while the server answers, and a smoke check that fails takes the change
back (`failing`). On two the walk is short, and vLLM's custom all-reduce, which the profile leaves
out, and CUDA graphs are switched on in its middle.

{walks}

## Again

    tests/gpu/pack.sh KIT BOOT       # then as tests/gpu/README.md says
    python tests/gpu/host/page.py h200=FOLDER       # a walk that is not named stays as it is
"""
TITLES = {
    "host-h200": "One H200",
    "host-h200-x2": "Two H200s, tensor parallelism 2",
}
NOTES = {
    "7fa7a07291c38aa37baaf5d7b55ecbec55dacbf7": (
        "The plan then counted NCCL's memory among vLLM's share; vLLM does not. As it is computed"
        " since, it has 0.989 of the tokens."
    ),
}
"""To the memory plan of a commit that was walked."""
PARTS = {"kv": "KV cache", "kv_tokens": "its tokens", "graphs": "CUDA graphs"}
ROWS = "| step | command | exit | seconds | what came of it |\n| --- | --- | --- | --- | --- |"


def merged(folders: list[Path]) -> Document:
    """The results of one walk."""
    steps = [step for folder in folders for step in json.loads(steps_of(folder).read_text())]
    first = folders[0]
    security = text_of(folders, "host-security.txt")
    gpus = GPU.findall(text_of(folders, "host-gpus.txt"))
    memory, graphs = first / "memory.json", first / "memory-graphs.json"
    exposure = EXPOSURE.search(security)
    journal = text_of(folders, "host-journal.txt")
    files = OPEN_FILES.search(journal)
    return {
        "commit": (first / "commit").read_text().strip(),
        "gpus": gpus,
        "continued": [json.loads(steps_of(each).read_text())[0]["name"] for each in folders[1:]],
        "exposure": float(exposure[1]) if exposure else None,
        "all_reduce": all_reduces(journal),
        "explained": EXPLAINED.findall(text_of(folders, "02-explained.txt")),
        "transports": sorted(set(TRANSPORT.findall(journal))),
        "open_files": int(files[1]) if files else None,
        "memory": json.loads(memory.read_text()) if memory.is_file() else None,
        "memory_graphs": json.loads(graphs.read_text()) if graphs.is_file() else None,
        "steps": steps,
    }


def all_reduces(journal: str) -> list[list[str]]:
    """What each server sums with among its GPUs, in the order in which vLLM tries them."""
    return [re.findall(r"\w+", found) for found in ALL_REDUCE.findall(journal)]


def steps_of(folder: Path) -> Path:
    """What the walk wrote: `run.py` puts it into a folder of its own."""
    inside = folder / "walk" / "results.json"
    return inside if inside.is_file() else folder / "results.json"


def text_of(folders: list[Path], name: str) -> str:
    """A file that one of the folders has."""
    return next((p.read_text() for f in folders for p in f.rglob(name)), "")


def outcome(step: Document) -> str:
    """In a few words."""
    bad = [row["name"] for row in step["checks"] if row["status"] == "failed"]
    passed = sum(row["status"] == "passed" for row in step["checks"])
    words = [step["status"]] if step["status"] else []
    words += [f"release {step['release']}"] if step["release"] else []
    words += [f"{passed} check{'s' if passed > 1 else ''} passed"] if passed else []
    words += [f"failed: {', '.join(bad)}"] if bad else []
    error = step.get("error")
    if error and not bad:
        words.append(": ".join(line.strip() for line in error.split("\n")).replace("|", "\\|"))
    return ", ".join(words) or "–"


def checks(document: Document, name: str) -> str:
    """What a step's checks said."""
    step = next((each for each in document["steps"] if each["name"] == name), None)
    marks = {"passed": "✓", "failed": "✗", "skipped": "–", "warning": "!"}
    rows = [] if step is None else step["checks"]
    width = max((len(row["name"]) for row in rows), default=0)
    lines = [f"{marks.get(r['status'], '?')} {r['name']:{width}}  {r['detail']}" for r in rows]
    return f'```text title="{name}"\n' + "\n".join(lines) + "\n```"


def walk(name: str, document: Document) -> str:
    """A walk's part of the page."""
    lines = [f"## {TITLES.get(name, name)}", "", f"Of commit `{document['commit'][:8]}`.", ""]
    if document["continued"]:
        names = ", ".join(f"`{each}`" for each in document["continued"])
        lines += [f"The walk was cut off at its time limit and went on from {names}.", ""]
    lines.append(ROWS)
    for step in document["steps"]:
        lines.append(
            f"| {step['name']} | `{step['command']}` | {step['exit_code']} | "
            f"{step['seconds']:.1f} | {outcome(step)} |"
        )
    lines += ["", checks(document, "preflight"), "", checks(document, "up"), ""]
    lines += planned(document)
    lines += [*among_gpus(document), ""] if document.get("all_reduce") else []
    if document.get("explained"):
        names = ", ".join(f"`{each}`" for each in document["explained"])
        lines += [
            "After these steps, one more server was started, with a tool parser that vLLM does not"
            f" have: `up` went back. Over all these starts `logs --explain` named {names}.",
            "",
        ]
    if document["exposure"] is not None:
        lines.append(
            f"`systemd-analyze security` calls the unit's exposure {document['exposure']}."
        )
    if document.get("open_files"):
        limits = next(
            (row["status"] for step in document["steps"] for row in step["checks"]
             if row["name"] == "limits"), "",
        )  # fmt: skip
        said = ", which `preflight` did not tell yet" if limits == "passed" else ""
        allowed = f"{document['open_files']:,} open files"
        lines += ["", f"vLLM warned at each start that the container allows it {allowed}{said}."]
    return "\n".join(lines)


def planned(document: Document) -> list[str]:
    """The memory plan over what vLLM reported, of the first server and of one with CUDA graphs."""
    lines: list[str] = []
    for key, begin in (("memory", "Memory"), ("memory_graphs", "With CUDA graphs, memory")):
        memory = document.get(key)
        if memory:
            parts = memory["planned_over_measured"]
            found = ", ".join(f"{PARTS.get(part, part)} {it:.3f}" for part, it in parts.items())
            lines += [f"{begin} as planned before anything was installed, divided by what vLLM "
                      f"then reported: {found}.{graphs_note(memory)}", ""]  # fmt: skip
    note = NOTES.get(document["commit"])
    return [*lines, note, ""] if note else lines


def graphs_note(memory: Document) -> str:
    """Why the plan for CUDA graphs is far from what a walk's small model takes."""
    ratio = memory["planned_over_measured"].get("graphs")
    if not ratio:
        return ""
    planned = memory["graphs"] / 2**20
    return (
        f" The plan leaves {planned:.0f} MiB for CUDA graphs, whatever the model; those of this one"
        f" took {planned / ratio:.0f}."
    )


def among_gpus(document: Document) -> list[str]:
    """By what way the GPUs reached each other, from the journal."""
    servers = "; then ".join(" before ".join(each) for each in document["all_reduce"])
    lines = [f"To sum among its GPUs, the servers took, as the journal has it: {servers}."]
    if document.get("transports"):
        ways = ", ".join(f"`{each}`" for each in document["transports"])
        lines.append(f"NCCL connected the GPUs by {ways}.")
    return lines


def main(*given: str) -> None:
    for each in given:
        name, _, folders = each.partition("=")
        found = merged([Path(folder) for folder in folders.split(",")])
        (RESULTS / f"host-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    kept = sorted(RESULTS.glob("host-*.json"), key=lambda path: len(path.name))
    walks = [walk(path.stem, json.loads(path.read_text())) for path in kept]
    PAGE.write_text(TEXT.format(walks="\n\n".join(walks)))


if __name__ == "__main__":
    main(*sys.argv[1:])
