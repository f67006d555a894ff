"""Checks a folder against a SHA-256 manifest, all cores at once, and stamps what was found right.

    verify.py FOLDER MANIFEST STAMP [--create]

The manifest is that of sha256sum. The stamp records size, times and inode of every file that was right, so that a later, cheap look
can tell whether anything was touched since (a change of the inode's own time cannot be undone by ``touch``). ``--create`` writes the
manifest first, from what lies there. Progress goes to standard output, a line at most every half second; exit status 1 names what is wrong.
Runs on Python 3.8 and later.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK = 4 << 20
IGNORED = {"MANIFEST.sha256"}


class Meter:
    """Counts bytes of all threads and says how far they are."""

    def __init__(self, total):
        self.total, self.done, self.shown = max(total, 1), 0, time.monotonic()
        self.began = self.shown
        self.lock = threading.Lock()

    def add(self, count):
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


def sha256(path, meter):
    """The digest of a file, read once with one buffer."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            meter.add(count)
    return digest.hexdigest()


def read_manifest(path):
    """Name to digest, in the manifest's order."""
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            digest, name = line.split(maxsplit=1)
            entries[name.lstrip("*")] = digest.lower()
    return entries


def listing(folder):
    """Every regular file below a folder, relative, but for what a transfer or we leave there."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if (
            path.is_file()
            and path.name not in IGNORED
            and not any(part.startswith(".") for part in name.parts)
        ):
            yield str(name)


def fingerprint(path):
    """What changes when a file is touched: size, both times in nanoseconds, inode."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def replace(path, text):
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def digests(folder, names):
    """Hash the named files, the largest first, on all cores."""
    sizes = {name: os.path.getsize(folder / name) for name in names}
    meter = Meter(sum(sizes.values()))
    order = sorted(names, key=lambda name: -sizes[name])
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(zip(order, pool.map(lambda name: sha256(folder / name, meter), order)))


def main(words):
    folder, manifest, stamp = Path(words[0]), Path(words[1]), Path(words[2])
    if "--create" in words[3:]:
        found = digests(folder, list(listing(folder)))
        if not found:
            sys.exit(f"no files in {folder}")
        replace(manifest, "".join(f"{found[name]}  {name}\n" for name in sorted(found)))
        wanted = found
    else:
        wanted = read_manifest(manifest)
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            sys.exit("missing: " + ", ".join(missing))
        found = None
    before = {name: fingerprint(folder / name) for name in wanted}
    if found is None:
        found = digests(folder, list(wanted))
    wrong = [name for name in wanted if found[name] != wanted[name]]
    if wrong:
        sys.exit("contents differ from the manifest: " + ", ".join(sorted(wrong)))
    moved = [name for name in wanted if fingerprint(folder / name) != before[name]]
    if moved:
        sys.exit("changed while they were read: " + ", ".join(sorted(moved)))
    key = hashlib.sha256(manifest.read_bytes()).hexdigest()
    replace(stamp, json.dumps({"manifest": key, "folder": str(folder), "files": before}))
    print(f"PROGRESS 1.0 {len(wanted)} files right", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
