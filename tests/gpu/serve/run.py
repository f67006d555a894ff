#!/usr/bin/env python3
"""Prove serving with our plugin against stock vLLM, on a machine with a CUDA GPU.

    python3 tests/gpu/serve/run.py --part stock --part ours --out DIR

Parts: `stock` and `ours` gather answers, `tp2` too and needs two GPUs. `throughput` runs vLLM's
benchmark over five servers of a deeper model, `profile` measures their kernels: both alone, or one
after the other over the same servers.
Cases whose answers are kept (`--kept`) for the same arguments, weights and sources of ours are not
started again. Everything that was gathered is written to `--out` as it comes: a run that is
stopped loses only what was under way. `results.py` merges it and writes the page.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "benchmarks")]

from measure import commit  # noqa: E402

from serve import ask, cases, model, parity, profiles, servers, throughput  # noqa: E402

ROOT = HERE.parents[2]
COMPILED = re.compile(r"JIT compilation during inference: (\w+)")
OURS = {
    "split_kernel", "merge_kernel", "paged_kernel", "prefill_kernel", "topk_kernel",
    "short_topk_kernel",
}  # fmt: skip
NOTES = re.compile(r"Mean acceptance length: [\d.]+.*?(?=, Per-position|$)", re.MULTILINE)
STAGGER = 0.3  # seconds between starts
MEASURED = ("throughput", "profile")
FOR_PROFILE = 5  # seconds that are left to the profile of a server under a load


@dataclass
class Session:
    """Folders, time and what has been gathered."""

    out: Path
    work: Path
    kept: Path
    paths: list[Path]
    program: Sequence[str]
    end: float
    start_limit: float
    began: float = field(default_factory=time.monotonic)
    answers: dict[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    running: list[servers.Server] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    fingerprint: str = ""
    kernels: str = ""
    loads: list[str] = field(default_factory=list)
    first_port: int = 8100
    measured: bool = False
    traces: Path | None = None
    profile: list[dict[str, Any]] = field(default_factory=list)
    gathered: set[str] = field(default_factory=set)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def save(self) -> None:
        """Write what this run gathered to the output folder, and nothing that was kept before."""
        with self.lock:
            for name, value in (("answers", self.answers), ("reference", self.references)):
                mine = {key: value[key] for key in value if key in self.gathered}
                (self.out / f"{name}.json").write_text(json.dumps(mine))
            about = {"device": device(), "versions": versions(self.paths), "failed": self.failures}
            about["command"] = " ".join(["python3 tests/gpu/serve/run.py", *_arguments()])
            about["commit"] = commit()
            (self.out / "about.json").write_text(json.dumps(about, indent=1))

    def keep_log(self, server: servers.Server, lines: int) -> None:
        """Append the end of a server's log to the one file of logs."""
        with self.lock, (self.out / "logs.txt").open("a") as file:
            file.write(f"===== {server.name}\n{server.tail(lines)}\n")


def _arguments() -> list[str]:
    """Arguments of this run without the folders, which mean nothing elsewhere."""
    found = " ".join(sys.argv[1:])
    return re.sub(r"--(out|kept|work|site|plugin|seconds|port)[= ]\S+ ?", "", found).split()


def device() -> str:
    """Names of the GPUs."""
    program = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"
    with contextlib.suppress(OSError):
        asked = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split(
            "\n"
        )
        return "; ".join(line for line in found if line)
    return "no GPU"


def versions(paths: Sequence[Path]) -> dict[str, str]:
    """Of what answered."""
    names = ("glm5-kernel", "vllm", "torch", "triton", "transformers")
    search = [*(str(path) for path in paths), *sys.path]
    return {
        found.metadata["Name"].lower(): found.version
        for name in names
        for found in list(importlib.metadata.distributions(name=name, path=search))[:1]
    }


def kernels_digest(package: Path) -> str:
    """Of the sources of ours that answers depend on."""
    digest = hashlib.sha256()
    for part in ("attention", "compat", "indexer", "ops"):
        for path in sorted((package / part).rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def unpack_plugin(folder: Path, target: Path) -> Path:
    """Unpack the glm5-kernel wheel, which makes its entry point visible on PYTHONPATH.

    Raises:
        SystemExit: there is not exactly one wheel, or it was built from other sources than those
            of this checkout.
    """
    wheels = list(folder.glob("glm5_kernel-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"{folder}: {len(wheels)} glm5-kernel wheels; prepare.sh builds one")
    shutil.rmtree(target, ignore_errors=True)
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(target)
    sources = ROOT / "kernel" / "glm5_kernel"
    for path in sorted(sources.rglob("*.py")):
        built = target / "glm5_kernel" / path.relative_to(sources)
        if not built.is_file() or built.read_bytes() != path.read_bytes():
            raise SystemExit(f"{wheels[0].name} is older than {path}: run prepare.sh again")
    return target


def reference(session: Session, topk: int, folder: Path) -> None:
    """Run reference.py in a process of its own, which gives its GPU memory back."""
    output = session.work / f"reference-{topk}.json"
    log = (session.work / f"reference-{topk}.log").open("w")
    left = max(1.0, session.end - time.monotonic())
    command = [sys.executable, str(HERE / "reference.py"), str(folder), str(output)]
    try:
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=left)
        found = json.loads(output.read_text())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        text = Path(log.name).read_text()[-3000:]
        session.failures[f"reference-{topk}"] = f"{type(error).__name__}\n{text}"
        session.say(f"the reference for top-k {topk} failed:\n{text}")
        return
    session.references[str(topk)] = {"weights": session.fingerprint, **found}
    session.gathered.add(str(topk))
    session.save()
    session.say(f"reference for top-k {topk}, on {found['device']}")


def check_backend(case: cases.Case, said: Sequence[str], log: str) -> None:
    """Raise ServerError unless the log says that the wanted kernels serve, in every worker."""
    kv = "fp8_ds_mla" if case.kv == "fp8" else case.kv
    wanted = f"attention=TRITON_MLA_SPARSE kv={kv} indexer=triton" if case.ours else case.backend
    if list(said) != [wanted]:
        raise servers.ServerError(f"{case.name}: served by {list(said)}, wanted {wanted}")
    workers = len(servers.OURS_LINE.findall(log))
    if case.ours and workers < case.tensor_parallel:
        raise servers.ServerError(
            f"{case.name}: {workers} of {case.tensor_parallel} workers said it"
        )


@contextlib.contextmanager
def serving(
    session: Session, case: cases.Case, port: int
) -> Iterator[tuple[servers.Server, float]]:
    """A ready server of the case and the seconds it took; it has ended afterwards."""
    base = {**os.environ, **cases.environment(case), "VLLM_PORT": str(port + 10000)}
    paths = session.paths if case.ours else session.paths[1:]
    env = servers.environment(base, paths, session.work / "cache")
    folder = session.work / ("deep" if session.measured else f"topk{case.topk}")
    given = cases.arguments(case, str(folder), port, measured=session.measured)
    if session.traces is not None:
        given += profiles.arguments(session.traces / case.name)
    server = servers.start(case.name, given, port, env, session.work / "logs", session.program)
    session.running.append(server)
    try:
        limit = min(time.monotonic() + session.start_limit, session.end)
        seconds = servers.wait(server, limit)
        session.say(f"{case.name}: ready after {seconds:.0f} s")
        check_backend(case, server.backends(), server.text())
        yield server, seconds
    except BaseException:
        session.keep_log(server, servers.LAST_LINES)
        raise
    finally:
        servers.stop(server)


def gather(session: Session, case: cases.Case, server: servers.Server, seconds: float) -> None:
    """Ask everything and keep the answers."""
    paths = {
        name: found["tokens"]
        for name, found in session.references.get(str(case.topk), {}).get("answers", {}).items()
    }
    left = max(5.0, session.end - time.monotonic())
    answer = ask.everything(ask.Client(server.url, min(120.0, left)), paths)
    session.answers[case.name] = {
        "fingerprint": cases.fingerprint(case, session.fingerprint, session.kernels),
        "backends": server.backends(),
        "start_seconds": round(seconds, 1),
        "notes": NOTES.findall(server.text())[-3:],
        "answer": answer,
    }
    session.gathered.add(case.name)
    session.keep_log(server, 12)
    session.save()
    session.say(f"{case.name}: asked in {answer['seconds']} s")
    late = sorted(OURS.intersection(COMPILED.findall(server.text())))
    if late:
        raise servers.ServerError(f"{case.name}: compiled while serving: {', '.join(late)}")


def known(session: Session, case: cases.Case) -> bool:
    """Whether the case has been answered, by the same server, weights and continuations."""
    found = session.answers.get(case.name)
    wanted = cases.fingerprint(case, session.fingerprint, session.kernels)
    return found is not None and found["fingerprint"] == wanted


def fail(session: Session, name: str, error: Exception) -> None:
    """Report a failure; the other cases go on."""
    text = f"{type(error).__name__}: {error}"
    session.failures[name] = (
        text[:2000] if len(text) < 4000 else f"{text[:1500]}\n…\n{text[-2500:]}"
    )
    session.say(f"{name} failed: {text[:160]} … {text[-500:]}")
    session.save()


def attempt(
    session: Session,
    case: cases.Case,
    port: int,
    ready: Sequence[Future[None]],
    held: contextlib.ExitStack | None,
) -> None:
    """Start a case, ask it where it has not been asked, and stop it, or leave that to `held`."""
    if session.end - time.monotonic() < 20:
        session.failures[case.name] = "not started: too little time was left"
        return
    try:
        with contextlib.ExitStack() as stack:
            server, seconds = stack.enter_context(serving(session, case, port))
            if held is not None:
                session.urls[case.name] = server.url
                held.push(stack.pop_all())
            if not session.measured and not known(session, case):
                for future in ready:
                    future.result()
                gather(session, case, server, seconds)
    except Exception as error:  # whatever broke, the other cases go on
        fail(session, case.name, error)


def gather_all(
    session: Session,
    chosen: Sequence[cases.Case],
    jobs: int,
    ready: Sequence[Future[None]],
    held: contextlib.ExitStack,
) -> None:
    """Several servers at a time, each on its own port; those that are measured go on."""
    with ThreadPoolExecutor(jobs) as pool:
        for number, case in enumerate(chosen):
            if number:
                time.sleep(STAGGER)
            keep = held if session.measured else None
            port = session.first_port + 40 * number
            pool.submit(attempt, session, case, port, ready, keep)


def warm(session: Session) -> None:
    """Write what vLLM caches about the model's class once, instead of once for each server."""
    if session.program[1:] != list(servers.VLLM) or not any(session.paths[1].glob("vllm")):
        return
    env = servers.environment(dict(os.environ), session.paths[1:], session.work / "cache")
    command = [sys.executable, str(HERE / "warm.py")]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, env=env, check=False, timeout=90)
    session.say("vLLM's model registry is warm")


def bench(session: Session) -> None:
    """Run throughput.py over the servers in the time that is left."""
    urls = {name: session.urls[name] for name in cases.THROUGHPUT if name in session.urls}
    held = [server for server in session.running if server.name in urls]
    targets = session.work / "targets.json"
    targets.write_text(
        json.dumps({"model": str(session.work / "deep"), "layers": model.DEEP, "servers": urls})
    )
    profiles_of = 0 if session.traces is None else len(urls) * len(to_profile(session))
    left = session.end - time.monotonic() - 10 - FOR_PROFILE * profiles_of
    command = [sys.executable, str(HERE / "throughput.py"), str(targets)]
    command += [str(session.out / "throughput.json"), str(left), *session.loads]
    env = servers.environment(dict(os.environ), session.paths[1:], session.work / "cache")
    told = session.out / throughput.FAILED
    told.unlink(missing_ok=True)
    lines = 15
    try:
        done = subprocess.run(command, env=env, check=False, timeout=max(1.0, left))
        if done.returncode:
            session.failures["throughput"] = f"throughput.py ended with {done.returncode}"
            lines = 40
    except subprocess.TimeoutExpired:
        session.say("the benchmark was cut off; whole loads of it are kept")
    for name, text in kept(session.out, told.stem).items():
        session.failures[f"throughput of {name}"] = text
        if TimeoutError.__name__ in text:
            servers.dump_stacks(next(server for server in held if server.name == name))
            lines = 120
    for server in held:
        session.keep_log(server, lines)


def to_profile(session: Session) -> list[tuple[int, profiles.Load]]:
    """Loads of the profile, by number, that are among those asked for."""
    return [
        (number, load)
        for number, load in enumerate(profiles.LOADS)
        if not session.loads or f"{load.concurrency}x{load.prompt_tokens}" in session.loads
    ]


def profile(session: Session) -> None:
    """Measure the kernels of each server that is up: every server under a load, then the next load.

    One at a time; a server writes its trace, which takes longer, while others are measured.
    """
    assert session.traces is not None
    reading: list[tuple[str, profiles.Load, Future[dict[str, Any]]]] = []
    spawned = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(4, spawned) as readers,
        ThreadPoolExecutor(len(session.urls) or 1) as pool,
    ):
        alive = dict(session.urls)
        for number, load in to_profile(session):
            for name, url in list(alive.items()):
                left = session.end - time.monotonic()
                if left < profiles.LEAST:
                    break
                try:
                    profiles.record(url, number, left)
                except Exception as error:  # whatever broke, the other servers go on
                    fail(session, f"profile of {name}", error)
                    del alive[name]
                    continue
                given = (session, name, number, left, readers)
                reading.append((name, load, pool.submit(read_profile, *given)))
            session.say(f"{load}: profiled {len(alive)} servers")
        print(profiles.table(profiled(session, reading)))


def read_profile(
    session: Session, name: str, number: int, timeout: float, readers: Executor
) -> dict[str, Any]:
    """The row of a load that was sent to a server."""
    assert session.traces is not None
    trace = profiles.written(session.urls[name], session.traces / name, number, timeout)
    found = readers.submit(profiles.row, profiles.LOADS[number], trace).result()
    row = {"impl": name, **found, "layers": model.DEEP}
    trace.unlink()
    session.say(f"{name}: {row['what']} {row['concurrency']} x {row['prompt_tokens']}: "
                f"{row['busy_us']:.0f} µs")  # fmt: skip
    with session.lock:
        session.profile.append(row)
        (session.out / "profile.json").write_text(json.dumps(session.profile, indent=1))
    return row


def profiled(
    session: Session, reading: Sequence[tuple[str, profiles.Load, Future[dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """The rows that could be read, in order."""
    rows = []
    for name, load, future in reading:
        try:
            rows.append(future.result())
        except Exception as error:  # whatever broke, the other rows are kept
            fail(session, f"profile of {name}, {load}", error)
    return rows


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Arguments of the program."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--part", action="append", choices=[*cases.PARTS, *MEASURED])
    one = {"action": "append", "metavar": "CASE"}
    parser.add_argument("--only", **one, choices=list(cases.ALL), help="instead of whole parts")
    parser.add_argument("--bench", **one, choices=cases.THROUGHPUT, help="measure these alone")
    parser.add_argument("--load", action="append", default=[], help="CONCURRENCYxTOKENS; or all")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT", "build/serve/out"))
    parser.add_argument("--kept", type=Path, default=ROOT / "build" / "serve")
    parser.add_argument("--work", type=Path, default=Path("/tmp/serve"))
    parser.add_argument("--site", type=Path, default=Path("/tmp/site"), help="where vLLM lies")
    parser.add_argument("--seconds", type=float, default=560, help="time for everything")
    parser.add_argument("--start-seconds", type=float, default=330, help="time for one start")
    parser.add_argument("--port", type=int, default=8100, help="the first server's")
    parser.add_argument("--jobs", type=int, default=20, help="servers at a time")
    parser.add_argument("--program", nargs="+", default=[sys.executable, *servers.VLLM])
    return parser.parse_args(given)


def kept(folder: Path, name: str) -> dict[str, Any]:
    """What earlier runs gathered."""
    path = folder / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def prepare(session: Session, topks: set[int]) -> None:
    """Models, and what earlier runs kept."""
    data = model.weights()
    session.fingerprint = model.fingerprint(data)
    if session.measured:
        model.build(session.work / "deep", 2048, data, model.DEEP)
        return
    for topk in topks:
        model.build(session.work / f"topk{topk}", topk, data)
    references = kept(session.kept, "reference")
    session.references = {
        topk: found for topk, found in references.items() if found["weights"] == session.fingerprint
    }
    session.answers = kept(session.kept, "answers")


def chosen_cases(options: argparse.Namespace) -> list[cases.Case]:
    """Cases that are wanted.

    Raises:
        SystemExit: what is measured is to run beside something else.
    """
    parts = options.part or ["stock", "ours"]
    if set(MEASURED) & set(parts):
        if not set(parts) <= set(MEASURED):
            raise SystemExit(f"--part {' --part '.join(parts)}: what is measured runs alone")
        wanted = options.only or options.bench or cases.THROUGHPUT
        return [cases.ALL[name] for name in cases.THROUGHPUT if name in wanted]
    if options.only:
        return [cases.ALL[name] for name in dict.fromkeys(options.only)]
    return [case for part in parts for case in cases.PARTS[part]]


def ended(session: Session) -> int:
    """Print the comparisons that are possible now; the exit code."""
    answers = {
        name: found["answer"] for name, found in session.answers.items() if name in cases.ALL
    }
    references = {topk: found["answers"] for topk, found in session.references.items()}
    if session.measured:
        answers = {}
    found = parity.rows(answers, references)
    (session.out / "summary.txt").write_text(parity.table(found) + "\n")
    judged = parity.judged(found)
    chosen = [row for row in found if row["what"] == "crowd" or not cases.ALL[row["case"]].ours]
    print(parity.table(chosen[-40:]))
    for verdict in judged:
        print(
            f"{verdict['case']:24}{verdict['against']:24}{verdict['what']:8}"
            f"{verdict['ratio']:7.2f} of {verdict['yardstick']}"
        )
    for name, text in session.failures.items():
        print(f"FAILED {name}: {text.splitlines()[0]}")
    return 1 if session.failures else 0


def main(given: Sequence[str] | None = None) -> int:
    options = parse(given)
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    wanted = chosen_cases(options)
    parts = set(options.part or [])
    session = Session(
        out=options.out,
        work=options.work,
        kept=options.kept,
        paths=[options.work / "plugin", options.site],
        program=options.program,
        end=time.monotonic() + options.seconds,
        start_limit=options.start_seconds,
        loads=options.load,
        first_port=options.port,
        measured=bool(set(MEASURED) & parts),
        traces=options.work / "traces" if "profile" in parts else None,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if any(case.ours for case in wanted):
        unpack_plugin(options.kept, options.work / "plugin")
        session.kernels = kernels_digest(options.work / "plugin" / "glm5_kernel")
    topks = {case.topk for case in wanted}
    with ThreadPoolExecutor(3) as pool, contextlib.ExitStack() as held:
        warming = pool.submit(warm, session)
        prepare(session, topks)
        ready = [
            pool.submit(reference, session, topk, session.work / f"topk{topk}")
            for topk in topks
            if not session.measured and str(topk) not in session.references
        ]
        todo = [case for case in wanted if session.measured or not known(session, case)]
        session.say(f"weights {session.fingerprint}; starting {len(todo)}")
        warming.result()
        try:
            gather_all(session, todo, options.jobs, ready, held)
            if "throughput" in parts:
                bench(session)
            if "profile" in parts:
                profile(session)
        finally:
            session.save()
            servers.stop_all(session.running, 5)
    return ended(session)


if __name__ == "__main__":
    sys.exit(main())
