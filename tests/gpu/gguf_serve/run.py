#!/usr/bin/env python3
"""Serve GLM-5 from GGUF with our attention, indexer and loader, and compare with transformers.

    python3 tests/gpu/gguf_serve/run.py --part single --out DIR     # tp2 needs two GPUs

Makes the files of cases.py, starts their servers (several at a time), asks each for the score of
every prompt position and for a given continuation, and compares with a float32 reference on the
file's dequantised weights. The results are DIR/gguf-h200.json, written as they come; those of
another part that lie at `--results` are kept. The status is 0 where every case is within its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "benchmarks")]

from measure import commit  # noqa: E402
from serve import ask, parity, servers  # noqa: E402
from serve import run as serving  # noqa: E402

from gguf_serve import cases, models  # noqa: E402

ROOT = HERE.parents[2]
RESULTS = "gguf-h200.json"
LOADED = re.compile(r"glm5_kernel: loading shard .*")
DRAFTS = re.compile(r"^vllm:spec_decode_num_(drafts|accepted_tokens)_total\S* ([\d.e+]+)", re.M)
TOGETHER = 3  # references at a time
ALONE = 3
"""How much further off than all together one prompt may be: a short one has few positions."""


@dataclass
class Session:
    """Folders, time and what has been gathered."""

    out: Path
    work: Path
    paths: list[Path]
    program: Sequence[str]
    end: float
    results: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    failures: dict[str, str] = field(default_factory=dict)
    running: list[servers.Server] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def left(self) -> float:
        return max(1.0, self.end - time.monotonic())

    def fail(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        with self.lock:
            self.failures[name] = text if len(text) < 4000 else f"{text[:1500]}\n…\n{text[-2500:]}"
        self.say(f"{name} failed: {text[:160]} … {text[-500:]}")
        self.save()

    def save(self) -> None:
        with self.lock:
            document = {**self.results, "failed": self.failures}
            (self.out / RESULTS).write_text(compact(document))


def compact(document: dict[str, Any]) -> str:
    """JSON with one row a line."""
    text = json.dumps(document, indent=1)
    inner = r"\{\n   [^\n]*(?:\n   [^\n]*)*?\n  \}"
    return re.sub(inner, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text) + "\n"


def child(session: Session, *words: str) -> None:
    """Run models.py; its output is the error's text where it fails."""
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, session.paths))}
    done = subprocess.run(
        [sys.executable, str(HERE / "models.py"), *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=session.left(),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"models.py {words[0]} {words[1]}: {done.stdout[-2500:]}")


def folder_of(session: Session, model: str) -> Path:
    return session.work / "models" / model


def referred(session: Session, model: str, made: Future[None]) -> dict[str, Any]:
    """The reference of a model, once its files are there."""
    made.result()
    output = session.work / f"reference-{model}.json"
    if not output.is_file():
        child(session, "reference", model, str(folder_of(session, model)), str(output))
    session.say(f"reference of {model}")
    return dict(json.loads(output.read_text()))


def answer_of(
    case: cases.Case, client: ask.Client, answers: dict[str, Any], vocabulary: int
) -> dict[str, Any]:
    """What `parity` compares: scores of prompts, and choices along the given continuations.

    With a draft model, vLLM scores prompts that go through CUDA graphs wrongly: the draft's graphs
    overwrite what the scores are computed from (vLLM issue 53488). Those are not asked for.
    """
    found: dict[str, Any] = {"prompt": {}, "follow": {}}
    for name, ids in models.prompts(vocabulary).items():
        if not (case.drafts and case.graphs and len(ids) <= cases.MOST_IN_GRAPHS):
            found["prompt"][name] = ask.score(client, ids)
        found["follow"][name] = ask.follow(client, ids, answers[name]["tokens"])
    return found


def against(what: dict[str, list[float]], answers: dict[str, Any]) -> dict[str, Any]:
    """How far other scores of the whole paths are from the reference's."""
    differences = [
        abs(a - b)
        for name, found in answers.items()
        for a, b in zip(what[name], [*found["prompt"], *found["logp"]], strict=True)
    ]
    return parity.summary(differences)


def compared(case: cases.Case, answer: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Rows of a case beside its yardsticks, and whether each is within the bound."""
    right = parity.reference_answer(known["answers"])
    rounding = against(known["bf16"], known["answers"])
    limit = cases.bound(case)
    rows = []
    for row in (parity.prompt_row(answer, right), parity.decode_row(answer, right)):
        scale = max(rounding["mean_abs_dlogp"], 1e-4)
        ratio = row["mean_abs_dlogp"] / scale
        each = [found["mean_abs_dlogp"] / scale for found in row["by_prompt"].values()]
        within = ratio <= limit and max(each) <= ALONE * limit
        rows.append({**row, "of_bf16": round(ratio, 2), "within": within})
    dense = against(known["dense"], known["answers"])
    return {"bound": limit, "rows": rows, "bf16": rounding, "all_selected": dense}


def checked(case: cases.Case, server: servers.Server) -> None:
    """Raise ServerError unless our loader read the file and the wanted kernels serve."""
    text = server.text()
    if LOADED.search(text) is None:
        raise servers.ServerError(f"{case.name}: our loader's line is not in the log")
    kv = "fp8_ds_mla" if case.kv == "fp8" else case.kv
    attention, indexer = ("TRITON_MLA_SPARSE", "triton") if case.ours else (case.backend, "stock")
    wanted = f"attention={attention} kv={kv} indexer={indexer}"
    if server.backends() != [wanted]:
        raise servers.ServerError(f"{case.name}: served by {server.backends()}, wanted {wanted}")
    beside = set(servers.STOCK_LINE.findall(text)) if case.ours else set()
    if beside:  # vLLM's choice for an MTP draft
        raise servers.ServerError(f"{case.name}: {', '.join(sorted(beside))} serves, too")
    workers = len(servers.OURS_LINE.findall(text))
    if case.ours and workers < case.tensor_parallel:
        raise servers.ServerError(f"{case.name}: {workers} workers said it")


def drafted(server: servers.Server) -> dict[str, float]:
    """What speculative decoding counted."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for name, value in DRAFTS.findall(text):
        found[name] = found.get(name, 0) + float(value)
    return found


def serve(
    session: Session, case: cases.Case, port: int, made: Future[None],
    reference: Future[dict[str, Any]],
) -> None:  # fmt: skip
    """Start a server, ask it, compare and stop it."""
    server = None
    try:
        made.result()
        base = {**os.environ, **cases.environment(case), "VLLM_PORT": str(port + 10000)}
        env = servers.environment(base, session.paths, session.work / "cache")
        first = sorted(folder_of(session, case.model).glob("*.gguf"))[0]
        given = cases.arguments(case, str(first), port)
        server = servers.start(case.name, given, port, env, session.work / "logs", session.program)
        session.running.append(server)
        seconds = servers.wait(server, session.end)
        session.say(f"{case.name}: ready after {seconds:.0f} s")
        checked(case, server)
        known = reference.result()
        vocabulary = models.spec_of(cases.MODELS[case.model]).hp.vocab
        client = ask.Client(server.url, min(120.0, session.left()))
        found = compared(case, answer_of(case, client, known["answers"], vocabulary), known)
        keep(session, case, server, found, seconds)
    except Exception as error:  # whatever broke, the other cases go on
        session.fail(case.name, error)
    finally:
        if server is not None:
            servers.stop(server)
            with session.lock, (session.out / "logs.txt").open("a") as file:
                file.write(f"===== {case.name}\n{server.tail()}\n")


def keep(
    session: Session, case: cases.Case, server: servers.Server, found: dict[str, Any],
    seconds: float,
) -> None:  # fmt: skip
    """Write a case down, and judge it."""
    model = asdict(cases.MODELS[case.model])
    entry = {**asdict(case), "file": model, "start_seconds": round(seconds, 1)}
    entry |= {"served_by": server.backends(), "commit": commit(), **found}
    if case.drafts:
        entry["mtp"] = drafted(server)
    with session.lock:
        session.results["cases"][case.name] = entry
    means = [row["mean_abs_dlogp"] for row in found["rows"]]
    ratios = [row["of_bf16"] for row in found["rows"]]
    session.say(f"{case.name}: mean {means}, of bf16's {ratios}, bound {found['bound']}")
    session.save()
    if not all(row["within"] for row in found["rows"]):
        raise AssertionError(f"{ratios} times what bf16 costs; {found['bound']} is the bound")
    if case.drafts and not entry["mtp"].get("drafts"):
        raise AssertionError(f"no draft was made: {entry['mtp']}")


def everything(session: Session, chosen: Sequence[cases.Case], jobs: int, first: int) -> None:
    """Make, refer and serve, each as soon as it can be."""
    names = list(dict.fromkeys(case.model for case in chosen))
    with (
        ThreadPoolExecutor(6) as makers, ThreadPoolExecutor(TOGETHER) as others,
        ThreadPoolExecutor(jobs) as pool,
    ):  # fmt: skip
        made = {
            name: makers.submit(child, session, "make", name, str(folder_of(session, name)))
            for name in names
        }
        serving.warm(session)  # type: ignore[arg-type]
        references = {name: others.submit(referred, session, name, made[name]) for name in names}
        for number, case in enumerate(chosen):
            port = first + 40 * number
            pool.submit(serve, session, case, port, made[case.model], references[case.model])


def table(results: dict[str, Any]) -> str:
    """A short text for the terminal."""
    lines = [f"{'case':26}{'what':8}{'mean':>9}{'max':>9}{'of bf16':>9}{'bound':>7}  all selected"]
    for name, case in results["cases"].items():
        for row in case["rows"]:
            lines.append(
                f"{name:26}{row['what']:8}{row['mean_abs_dlogp']:9.4f}{row['max_abs_dlogp']:9.4f}"
                f"{row['of_bf16']:9.2f}{case['bound']:7.0f}{case['all_selected']['mean_abs_dlogp']:14.4f}"
            )
    return "\n".join(lines)


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--part", action="append", choices=list(cases.PARTS))
    parser.add_argument("--only", action="append", choices=list(cases.ALL), metavar="CASE")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT", "build/gguf-serve"))
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "serve", help="the wheel's")
    parser.add_argument("--results", type=Path, help="results that these are added to")
    parser.add_argument("--work", type=Path, default=Path("/tmp/gguf-serve"))
    parser.add_argument("--site", type=Path, default=Path("/tmp/site"), help="where vLLM lies")
    parser.add_argument("--seconds", type=float, default=420, help="time for everything")
    parser.add_argument("--port", type=int, default=8100, help="the first server's")
    parser.add_argument("--jobs", type=int, default=20, help="servers at a time")
    parser.add_argument("--program", nargs="+", default=[sys.executable, *servers.VLLM])
    return parser.parse_args(given)


def document(session_paths: Sequence[Path], before: Path | None) -> dict[str, Any]:
    """Where the results go; cases of an earlier run stay."""
    kept: dict[str, Any] = {"cases": {}}
    if before is not None and before.is_file():
        kept = json.loads(before.read_text())
    command = "python3 tests/gpu/gguf_serve/run.py"
    about = {"device": serving.device(), "versions": serving.versions(session_paths)}
    return {**about, "command": command, "cases": kept.get("cases", {})}


def main(given: Sequence[str] | None = None) -> int:
    options = parse(given)
    for folder in (options.out, options.work):
        folder.mkdir(parents=True, exist_ok=True)
    paths = [serving.unpack_plugin(options.kept, options.work / "plugin"), options.site]
    session = Session(
        options.out, options.work, paths, options.program, time.monotonic() + options.seconds,
        document(paths, options.results),
    )  # fmt: skip
    parts = options.part or ["single"]
    chosen = [cases.ALL[name] for name in options.only or ()]
    chosen = chosen or [case for part in parts for case in cases.PARTS[part]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        everything(session, chosen, options.jobs, options.port)
    finally:
        session.save()
        servers.stop_all(session.running, 5)
    print(table(session.results))
    for name, text in session.failures.items():
        print(f"FAILED {name}: {text.splitlines()[0]}")
    return 1 if session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
