"""What this program keeps on the operator's machine: caches, the audit log, what failed last."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def _base(variable: str, default: str) -> Path:
    value = os.environ.get(variable)
    return (Path(value) if value else Path.home() / default) / "glm5-deploy"


def cache_folder() -> Path:
    """Things that can be made again."""
    return _base("XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Things that should last."""
    return _base("XDG_STATE_HOME", ".local/state")


def audit(command: str, hosts: dict[str, Any], seconds: float, exit_code: int) -> None:
    """Append one line about a command that could change hosts."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    entry = {
        "at": time.time(),
        "command": command,
        "exit_code": exit_code,
        "seconds": round(seconds, 1),
        "hosts": hosts,
    }
    descriptor = os.open(folder / "audit.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = json.dumps(entry).encode() + b"\n"
        # A run that was killed may have left half a line.
        torn = file.seek(0, os.SEEK_END) > 0 and os.pread(descriptor, 1, file.tell() - 1) != b"\n"
        file.write(b"\n" + line if torn else line)


def read_audit(limit: int) -> list[dict[str, Any]]:
    """The last entries, the newest last."""
    try:
        lines = (state_folder() / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return parse_audit(lines)[-limit:]


def parse_audit(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Entries of an audit log; a line that a power cut or a kill left torn is shown as it is."""
    entries: list[dict[str, Any]] = []
    for line in lines:
        if not line.strip("\0 \t\r\n"):
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        entries.append(entry if isinstance(entry, dict) else {"action": "torn line", "text": line})
    return entries


def _last_run(key: str) -> Path:
    return state_folder() / f"last-run-{key}.json"


def remember_outcomes(key: str, statuses: dict[str, str]) -> None:
    """Keep each host's last status; hosts that were not part of this run keep theirs."""
    path = _last_run(key)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = {**_read(path), **statuses}
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(merged), encoding="utf-8")
        temporary.replace(path)


def failed_hosts(key: str) -> list[str]:
    """Hosts whose last run did not end well."""
    good = {"unchanged", "changed"}
    return [host for host, status in _read(_last_run(key)).items() if status not in good]


def _read(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
