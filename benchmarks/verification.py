#!/usr/bin/env python3
"""How fast a model is verified, beside what the disk and all cores can do at best.

    .venv/bin/python benchmarks/verification.py [--gib 4] [--files 8] [--rounds 5] [--save]

The aim is the speed of the disk or of SHA-256 on all cores, whichever is lower. Every round reads
the same folder of random files, from the page cache and, where it can be dropped (root), from the
disk:

- ``verify``: our onhost/verify.py;
- ``cores``: one ``openssl dgst -sha256`` per core, the files dealt out evenly: SHA-256 on all cores
  (coreutils' ``sha256sum`` is slower where it is built without the processor's own instructions);
- ``sha256sum``: one process, file after file, from the page cache alone: what people would type;
- ``read``: ``dd`` with direct reads, from the disk alone: the disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "deploy")]

from benchmarks.measure import machine, save, summary  # noqa: E402

VERIFY = CHECKOUT / "deploy/glm5_deploy/onhost/verify.py"
CHUNK = 16 << 20
SKIPPED = {"cached": {"read"}, "cold": {"sha256sum"}}
CACHES = Path("/proc/sys/vm/drop_caches")


def fill(folder: Path, size: int, count: int) -> list[Path]:
    """Random files of one size; the disk has them when this returns."""
    paths = [folder / f"model-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
    for path in paths:
        with path.open("wb") as file:
            for _ in range(size // count // CHUNK):
                file.write(os.urandom(CHUNK))
            os.fsync(file.fileno())
    return paths


def drop_caches() -> None:
    """Forget what was read: the next read comes from the disk."""
    os.sync()
    CACHES.write_text("1\n")


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def call(*words: str | Path) -> None:
    subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL)


def together(commands: Sequence[Sequence[str | Path]]) -> None:
    """Run commands beside each other.

    Raises:
        RuntimeError: one failed.
    """
    running = [
        subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL) for words in commands
    ]
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise RuntimeError("a command failed")


def ways(paths: Sequence[Path], manifest: Path) -> dict[str, Callable[[], object]]:
    """Each way of reading, by name."""
    folder, cores = paths[0].parent, os.cpu_count() or 1
    stamp = manifest.with_name("stamp.json")
    dealt = [paths[core::cores] for core in range(cores)]
    return {
        "verify": lambda: call(sys.executable, VERIFY, folder, manifest, stamp),
        "sha256sum": lambda: call("sha256sum", *paths),
        "cores": lambda: together([["openssl", "dgst", "-sha256", *p] for p in dealt if p]),
        "read": lambda: read(paths),
    }


def read(paths: Sequence[Path]) -> None:
    """All files with dd, past the page cache."""
    for path in paths:
        call("dd", f"if={path}", "of=/dev/null", f"bs={CHUNK}", "iflag=direct", "status=none")


def rounds(paths: Sequence[Path], manifest: Path, count: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by cache state and way."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    states = ["cached", "cold"] if os.access(CACHES, os.W_OK) else ["cached"]
    for number in range(count):
        for state in states:
            names = list(ways(paths, manifest).items())
            for name, work in names[number % len(names) :] + names[: number % len(names)]:
                if name in SKIPPED[state]:
                    continue
                if state == "cold":
                    drop_caches()
                seconds = timed(work)
                found[state][name].append(seconds)
                print(f"{state}, {name}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return found


def document(times: dict[str, dict[str, list[float]]], size: int) -> dict[str, Any]:
    """Medians, rates in GB/s, and how `verify` compares: above 1 means faster."""
    seconds = {s: {n: summary(v) for n, v in rows.items()} for s, rows in times.items()}
    rates = {
        state: {name: round(size / row["median"] / 1e9, 3) for name, row in rows.items()}
        for state, rows in seconds.items()
    }
    ratios = {"cached/all cores": rates["cached"]["verify"] / rates["cached"]["cores"]}
    ratios["cached/one sha256sum"] = rates["cached"]["verify"] / rates["cached"]["sha256sum"]
    if "cold" in rates:
        bound = min(rates["cached"]["cores"], rates["cold"]["read"])
        ratios["cold/lower of disk and all cores"] = rates["cold"]["verify"] / bound
        ratios["cold/all cores, cold"] = rates["cold"]["verify"] / rates["cold"]["cores"]
    ratios = {name: round(value, 3) for name, value in ratios.items()}
    return {"bytes": size, "seconds": seconds, "gb_per_second": rates, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description="the speed of model verification")
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on the disk to test")
    parser.add_argument("--save", action="store_true", help="write results/verification.json")
    options = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory(prefix="glm5-verify-", dir=options.folder) as name:
        folder = Path(name) / "model"
        folder.mkdir()
        paths = fill(folder, options.gib << 30, options.files)
        size = sum(path.stat().st_size for path in paths)
        manifest = Path(name) / "MANIFEST.sha256"
        call(sys.executable, VERIFY, folder, manifest, Path(name) / "stamp.json", "--create")
        times = rounds(paths, manifest, options.rounds)
    found = {"machine": about, "files": len(paths), **document(times, size)}
    print(f"GB/s: {found['gb_per_second']}\nratios: {found['ratios']}")
    if options.save:
        print(f"written: {save('verification', found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
