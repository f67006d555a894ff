"""Checks a folder against a SHA-256 manifest on all cores, and stamps what was found right.

    verify.py FOLDER MANIFEST STAMP [--create] [--signed SHA256]

The manifest is that of sha256sum. The stamp records size, times and inode of every file that was
right, so that a later, cheap look can tell whether anything was touched since (``touch`` cannot
undo a change of the inode's own time). ``--create`` writes the manifest first, from what lies
there. ``--signed`` is what the manifest itself must hash to: another one is refused and not
written. Progress goes to standard output, a line at most every half second; exit status 1 names
what is wrong. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK = 4 << 20
IGNORED = {"MANIFEST.sha256"}


class Meter:
    """Counts bytes of all threads and says how far they are."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown = max(total, 1), 0, time.monotonic()
        self.began = self.shown
        self.lock = threading.Lock()

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            now = time.monotonic()
            if now - self.shown < 0.5:
                return
            self.shown = now
            rate = self.done / (now - self.began) / 1e9
            print(
                f"PROGRESS {self.done / self.total:.4f} {self.done / 1e9:.1f} GB, {rate:.2f} GB/s",
                flush=True,
            )


def sha256(path: Path, meter: Meter) -> str:
    """The digest of a file, read once with one buffer."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            meter.add(count)
    return digest.hexdigest()


def read_manifest(path: Path) -> dict[str, str]:
    """Name to digest, in the manifest's order."""
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            digest, _, marked = line.partition(" ")
            name = marked[1:] if marked.startswith((" ", "*")) else marked
            entries[name] = digest.lower()
    return entries


def listing(folder: Path) -> Iterator[str]:
    """Every file below a folder, relative, but for what a transfer or we leave there, and names
    that a line of text cannot hold. A link that leads nowhere is one that is missing.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if (
            (path.is_file() or (path.is_symlink() and not path.exists()))
            and path.name not in IGNORED
            and str(name).isprintable()
            and not any(part.startswith(".") for part in name.parts)
        ):
            yield str(name)


def fingerprint(path: Path) -> list[int]:
    """What changes when a file is touched: size, both times in nanoseconds, inode."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def digests(folder: Path, names: list[str]) -> dict[str, str]:
    """Hash the named files, the largest first, on all cores."""
    sizes = {name: os.path.getsize(folder / name) for name in names}
    meter = Meter(sum(sizes.values()))
    order = sorted(names, key=lambda name: -sizes[name])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = {name: pool.submit(sha256, folder / name, meter) for name in order}
        return {name: job.result() for name, job in jobs.items()}


def main(words: list[str]) -> None:
    folder, manifest, stamp = Path(words[0]), Path(words[1]), Path(words[2])
    names = list(listing(folder)) if "--create" in words[3:] else list(read_manifest(manifest))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        sys.exit("missing: " + ", ".join(missing) if missing else f"no files for {folder}")
    before = {name: fingerprint(folder / name) for name in names}
    found = digests(folder, names)
    moved = [name for name in names if fingerprint(folder / name) != before[name]]
    if moved:
        sys.exit("changed while they were read: " + ", ".join(sorted(moved)))
    made = "".join(f"{found[name]}  {name}\n" for name in sorted(found))
    text = made if "--create" in words[3:] else manifest.read_text(encoding="utf-8")
    key = hashlib.sha256(text.encode()).hexdigest()
    signed = words[words.index("--signed") + 1] if "--signed" in words[3:] else key
    if key != signed:
        stamp.unlink(missing_ok=True)
        sys.exit(f"the manifest hashes to {key}, but model.manifest_sha256 is {signed}")
    if "--create" in words[3:]:
        replace(manifest, made)
    wanted = read_manifest(manifest)
    wrong = [name for name in names if found[name] != wanted[name]]
    if wrong:
        stamp.unlink(missing_ok=True)
        sys.exit("contents differ from the manifest: " + ", ".join(sorted(wrong)))
    replace(stamp, json.dumps({"manifest": key, "folder": str(folder), "files": before}))
    print(f"PROGRESS 1.0 {len(names)} files right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
