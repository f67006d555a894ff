"""The table of docs/gguf.md from benchmarks/results/gguf-h200.json.

python tests/gpu/gguf_serve/page.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

from tables import put_between  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gguf-h200.json"
PAGE = ROOT / "docs" / "gguf.md"
HEAD = ("file", "server", "prompts", "decoded", "bound", "all selected")


def server(case: dict[str, Any]) -> str:
    """How it was served."""
    kv = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8_ds_mla"}[case["kv"]]
    words = [kv, "CUDA graphs" if case["graphs"] else "eager"]
    if case["backend"] != "CUSTOM":
        words.append(f"stock {case['backend']}")
    if case["tensor_parallel"] > 1:
        words.append(f"TP {case['tensor_parallel']}")
        words.append("custom all-reduce" if case["all_reduce"] else "NCCL")
    if case["drafts"]:
        counted = case["mtp"]
        words.append(f"MTP, {counted['drafts']:.0f} drafts")
    return ", ".join(words)


def file(model: dict[str, Any]) -> str:
    """What of the file's form matters."""
    form = model["form"]
    words = ["5.2" if form.get("variant") == "glm5.2" else "5", form.get("quant", "q8_0").upper()]
    words.append(f"top-k {form.get('topk', 512):,}")
    if "shared" in form:
        words.append({"omit": "shared omitted", "repeat": "shared repeated"}[form["shared"]])
    if form.get("types") is False:
        words.append("no types")
    if "kv_b" in form:
        words.append({"flat": "2-D kv_b", "whole": "whole kv_b"}[form["kv_b"]])
    if form.get("mtp"):
        words.append("MTP")
    if model["split"] > 1:
        words.append(f"{model['split']} files")
    return ", ".join(words)


def share(row: dict[str, Any]) -> str:
    """The mean, and how many times bf16's it is."""
    return f"{row['mean_abs_dlogp']:.4f} ({row['of_bf16']:.2f})"


def table(document: dict[str, Any]) -> str:
    """One line a server."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for case in document["cases"].values():
        prompt, decode = case["rows"]
        lines.append((
            file(case["file"]), server(case), share(prompt), share(decode),
            f"{case['bound']:.0f}", f"{case['all_selected']['mean_abs_dlogp']:.3f}",
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commits(document: dict[str, Any]) -> str:
    """Which sources the servers ran with, where it was noted."""
    noted: dict[str, list[str]] = {}
    for name, case in document["cases"].items():
        noted.setdefault(case.get("commit", "")[:8], []).append(f"`{name}`")
    said = [f"{', '.join(names)}: commit `{commit}`." for commit, names in noted.items() if commit]
    if "" in noted and said:
        said.append("The others are older; their commits were not noted.")
    return "\n".join(said)


def main() -> None:
    document = json.loads(RESULTS.read_text())
    put_between(PAGE, "proof", f"{table(document)}\n\n{commits(document)}".rstrip())


if __name__ == "__main__":
    main()
