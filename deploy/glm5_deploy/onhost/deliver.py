"""Runs a command that brings a model's files, and says how far it is.

    deliver.py FOLDER TOTAL AGAIN -- COMMAND…

TOTAL is how many bytes the files have, or 0 where nobody knows. AGAIN lists statuses, separated by
commas, after which the command is run again while it gets on: those of a connection that broke.
Progress is the growth of FOLDER; other lines of the command are passed on, at most a few a second.
Runs on Python 3.8 and later.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

PAUSE = 2.0
"""Seconds between looks at the folder."""

ATTEMPTS = 5
"""In a row without any growth."""

LINES_A_SECOND = 2.0


def grown(folder: Path) -> int:
    """Bytes below a folder, unfinished files too."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_blocks * 512
            except OSError:  # renamed meanwhile
                continue
    return total


def report(folder: Path, total: int, done: threading.Event) -> None:
    """Lines of progress until the end."""
    began, first = time.monotonic(), grown(folder)
    while not done.wait(PAUSE):
        held = grown(folder)
        rate = (held - first) / (time.monotonic() - began) / 1e9
        fraction = f"{min(held / total, 1.0):.4f}" if total else "-"
        print(f"PROGRESS {fraction} {held / 1e9:.1f} GB, {rate:.2f} GB/s", flush=True)


def pass_on(stream: object) -> None:
    """What the command says; lines that rewrite themselves are thinned out."""
    pending, last = b"", 0.0
    while True:
        data = os.read(stream.fileno(), 65536)  # type: ignore[attr-defined]
        if not data:
            break
        pending = (pending + data).replace(b"\r", b"\n")
        *lines, pending = pending.split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            rewritten = "%" in text
            if text and (not rewritten or time.monotonic() - last > 1 / LINES_A_SECOND):
                print(f"PROGRESS - {text}" if rewritten else text, flush=True)
                last = time.monotonic() if rewritten else last
    if pending.strip():
        print(pending.decode(errors="replace").strip(), flush=True)


def run(argv: list[str], folder: Path) -> int:
    """One attempt: the command's status."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            bufsize=0,
        )
    except OSError as error:
        sys.exit(f"cannot run {argv[0]}: {error.strerror}")
    pass_on(process.stdout)
    return process.wait()


def main(words: list[str]) -> None:
    folder, total = Path(words[0]), int(words[1])
    again = {int(word) for word in words[2].split(",") if word}
    argv = words[words.index("--") + 1 :]
    os.umask(0o022)
    folder.mkdir(parents=True, exist_ok=True)
    done = threading.Event()
    threading.Thread(target=report, args=(folder, total, done), daemon=True).start()
    left, before = ATTEMPTS, grown(folder)
    while True:
        status = run(argv, folder)
        held = grown(folder)
        left, before = (ATTEMPTS if held > before else left - 1), held
        if status not in again or left < 1:
            break
        print("PROGRESS - the connection broke: going on where it ended", flush=True)
        time.sleep(2.0 * (ATTEMPTS - left + 1))
    done.set()
    if status:
        sys.exit(f"{os.path.basename(argv[0])} ended with status {status}")
    print(f"PROGRESS 1.0 {grown(folder) / 1e9:.1f} GB there", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
