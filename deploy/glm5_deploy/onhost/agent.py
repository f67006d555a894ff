"""Switches a host between releases, and takes an unconfirmed switch back by itself.

    agent.py ROOT switch      carry out the switch that standard input describes, as pending
    agent.py ROOT confirm ID  the release proved itself: forget that it was pending
    agent.py ROOT extend N    give the pending switch N seconds from now
    agent.py ROOT revert ID WHY  take this pending switch back now; another's is left alone
    agent.py ROOT prune N     keep the current, the previous, a pending release and N more
    agent.py ROOT check       take the switch back if its deadline has passed (a timer calls this)

The pending note is written before anything is switched and removed after all is confirmed, so that
a host that loses power in between takes the switch back when it boots. Every step may run twice.
One JSON document is printed; exit status 0 means that it was done. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNITS = Path("/etc/systemd/system")


def systemctl(*words: str, check: bool = True) -> bool:
    """Run systemctl, raising with what it said."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"systemctl {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.returncode == 0


def write(path: Path, text: str) -> None:
    """Replace a file in one step that survives a power cut."""
    temporary = path.with_name(f".{path.name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    settle(path.parent)


def settle(folder: Path) -> None:
    """Make what was renamed or removed in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(path: Path) -> None:
    """Remove a file so that it does not come back with a power cut."""
    path.unlink(missing_ok=True)
    settle(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """The document in a file, or None where there is none or it is torn."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def read_pending(state: Path) -> dict[str, Any] | None:
    """The switch that is not confirmed yet; a note that lacks what a revert needs is none."""
    note = read_json(state / "pending.json")
    if note is None or not {"release", "unit", "previous", "deadline"} <= note.keys():
        return None
    return note


def link(path: Path, target: Path | None) -> None:
    """Point a symbolic link elsewhere in one step; None removes it."""
    if target is None:
        path.unlink(missing_ok=True)
        return
    if path.is_dir() and not path.is_symlink():
        raise RuntimeError(f"{path} is a folder and should be a link: move it away")
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def audit(state: Path, action: str, **details: object) -> None:
    """Append one line to the host's audit log; a full disk stops neither a switch nor a revert."""
    entry = {"at": time.time(), "action": action, **details}
    with suppress(OSError), open(state / "audit.jsonl", "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        # A power cut may have left half a line.
        torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        file.write(b"\n" * torn + json.dumps(entry).encode() + b"\n")


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """One agent at a time: the timer and an operator may call it together."""
    with open(state / ".agent.lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install_unit(release: Path, unit: str) -> bool:
    """Put a release's unit in place; reload systemd only when that changed something."""
    wanted = (release / "unit").read_text(encoding="utf-8")
    place = UNITS / unit
    if place.exists() and place.read_text(encoding="utf-8") == wanted:
        return False
    write(place, wanted)
    systemctl("daemon-reload")
    return True


def unit_of(root: Path, release: str | None, otherwise: str) -> str:
    """The service that a release was made for: a profile may have had another name then."""
    try:
        text = (root / "releases" / str(release) / "unit").read_text(encoding="utf-8")
    except OSError:
        return otherwise
    found = re.search(r"^SyslogIdentifier=([a-zA-Z0-9_.-]+)$", text, re.MULTILINE)
    return f"{found.group(1)}.service" if found else otherwise


def retire(unit: str) -> None:
    """Stop a service and take its unit away: two servers of one root never run side by side."""
    place = UNITS / unit
    if not place.exists():
        return
    systemctl("disable", "--quiet", "--now", unit)
    systemctl("reset-failed", unit, check=False)
    forget(place)
    systemctl("daemon-reload")


def retire_guards(root: Path, unit: str) -> None:
    """Take away the timers that watched this root for services of other names."""
    for service in UNITS.glob("*-confirm.service"):
        timer = service.with_suffix(".timer")
        if timer.name == timer_of(unit) or not watches(service, root):
            continue
        systemctl("disable", "--quiet", "--now", timer.name, check=False)
        timer.unlink(missing_ok=True)
        service.unlink(missing_ok=True)
        systemctl("daemon-reload")


def watches(service: Path, root: Path) -> bool:
    """Whether a unit file is that of this agent for this root."""
    agent = str(root / "lib" / "agent.py").replace("%", "%%").replace("\\", "\\\\")
    agent = agent.replace('"', '\\"')
    return f'"{agent}"' in service.read_text(encoding="utf-8", errors="replace")


def activate(root: Path, release: str, unit: str) -> bool:
    """Make a release the current one and (re)start its service without waiting for it."""
    folder = root / "releases" / release
    if not (folder / "unit").is_file():
        raise RuntimeError(f"release {release} is not on this host: {folder}")
    before = unit_of(root, current_release(root), unit)
    if before != unit:
        retire(before)
    link(root / "current", Path("releases") / release)
    reloaded = install_unit(folder, unit)
    systemctl("reset-failed", unit, check=False)
    if not systemctl("is-enabled", "--quiet", unit, check=False):
        systemctl("enable", "--quiet", unit)
    systemctl("restart", "--no-block", unit)
    return reloaded


def is_down(unit: str) -> bool:
    """Whether somebody stopped and disabled a service: a failed start must not bring it back."""
    return not any(
        systemctl(word, "--quiet", unit, check=False) for word in ("is-active", "is-enabled")
    )


def put_down(root: Path, release: str | None, unit: str) -> None:
    """Stop and disable a service; its unit, and what is current, are those of an earlier release,
    where there is one.
    """
    systemctl("disable", "--quiet", "--now", unit, check=False)
    systemctl("reset-failed", unit, check=False)
    if release is None:
        link(root / "current", None)
        return
    earlier = unit_of(root, release, unit)
    if earlier != unit:
        retire(unit)
    link(root / "current", Path("releases") / release)
    install_unit(root / "releases" / release, earlier)


def current_release(root: Path) -> str | None:
    """The id that ``current`` points to, or None."""
    path = root / "current"
    return os.path.basename(os.readlink(path)) if path.is_symlink() else None


def timer_of(unit: str) -> str:
    return unit.replace(".service", "-confirm.timer")


def due(seconds: float) -> dict[str, object]:
    """A deadline on both clocks: the one that people set, and the one that only runs."""
    return {
        "deadline": time.time() + seconds,
        "boot": boot(),
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME) + seconds,
        "within": seconds,
    }


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def seconds_left(pending: dict[str, Any]) -> float:
    """Until the deadline. A clock that is set meanwhile moves nothing; after a reboot the wall
    clock counts, but no longer than the whole time since then.
    """
    if pending.get("boot") == boot():
        return float(pending["uptime"]) - time.clock_gettime(time.CLOCK_BOOTTIME)
    within = float(pending.get("within", pending.get("confirm_within", 0)))
    return min(float(pending["deadline"]) - time.time(), within - since_boot())


def since_boot() -> float:
    """Seconds since process 1 began; a container's kernel has been up for longer."""
    ticks = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    began = int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def switch(root: Path, state: Path, order: dict[str, Any]) -> dict[str, object]:
    """Note the switch as pending, then carry it out.

    A switch that replaces another pending one keeps the release that was last confirmed as the one
    to go back to, and whether that had been taken down.
    """
    pending = read_pending(state)
    before = pending["previous"] if pending else current_release(root)
    served = unit_of(root, before, order["unit"])
    down = pending.get("down", False) if pending else is_down(served)
    note = {**order, "previous": before, "down": down, **due(order["confirm_within"])}
    (state / "reverted.json").unlink(missing_ok=True)
    write(state / "pending.json", json.dumps(note))
    systemctl("start", "--no-block", timer_of(order["unit"]), check=False)
    reloaded = activate(root, order["release"], order["unit"])
    audit(state, "switch", release=order["release"], previous=before, by=order.get("by"))
    return {"switched": order["release"], "previous": before, "reloaded": reloaded}


def extend(state: Path, seconds: float) -> dict[str, object]:
    """An interrupted run is taken up again: the pending switch gets its time anew."""
    pending = read_pending(state)
    if pending is None:
        raise RuntimeError("nothing is pending any more: the switch was taken back")
    write(state / "pending.json", json.dumps({**pending, **due(seconds)}))
    return {"pending": pending["release"]}


def confirm(root: Path, state: Path, release: str) -> dict[str, object]:
    """Keep the release: nothing takes it back any more."""
    pending = read_pending(state)
    if pending is None:
        if current_release(root) == release:
            return {"confirmed": release}
        raise RuntimeError(
            f"release {release} is no longer current: it was taken back before it was confirmed"
        )
    if pending["release"] != release:
        raise RuntimeError(f"release {pending['release']} is pending, not {release}")
    if pending["previous"] and pending["previous"] != release:
        link(root / "previous", Path("releases") / pending["previous"])
    forget(state / "pending.json")
    systemctl("stop", "--no-block", timer_of(pending["unit"]), check=False)
    retire_guards(root, pending["unit"])
    audit(state, "confirm", release=release)
    return {"confirmed": release}


def revert(root: Path, state: Path, release: str, reason: str) -> dict[str, object]:
    """Go back to the release that was last confirmed, stopped and disabled where it had been taken
    down or there was none. A switch to another release than this is somebody else's and left alone.
    """
    pending = read_pending(state)
    if pending is None or pending["release"] != release:
        other = None if pending is None else pending["release"]
        return {"reverted": None, "pending": other, "current": current_release(root)}
    unit, previous = pending["unit"], pending["previous"]
    if previous is not None and not (root / "releases" / previous / "unit").is_file():
        reason = f"{reason}; release {previous} is damaged: stopped and disabled instead"
        previous = None
    down = previous is None or bool(pending.get("down"))
    if down:
        put_down(root, previous, unit)
    elif untouched(root, pending):
        systemctl("start", "--no-block", unit_of(root, previous, unit))
    else:
        with suppress(OSError):
            write(state / "pending.json", json.dumps({**pending, "reverting": True}))
        activate(root, previous, unit_of(root, previous, unit))
    done = {
        "reverted": pending["release"],
        "previous": previous,
        "down": down,
        "reason": reason,
        "at": time.time(),
    }
    # Left pending, it would restart the earlier server every few seconds.
    with suppress(OSError):
        write(state / "reverted.json", json.dumps(done))
    forget(state / "pending.json")
    audit(state, "revert", release=pending["release"], previous=previous, reason=reason)
    systemctl("stop", "--no-block", timer_of(unit), check=False)
    return done


def untouched(root: Path, pending: dict[str, Any]) -> bool:
    """Whether a power cut came before the switch itself: the earlier server need not load again."""
    previous, current = pending["previous"], current_release(root)
    if pending.get("reverting") or current != previous or previous == pending["release"]:
        return False
    place = UNITS / unit_of(root, previous, pending["unit"])
    wanted = (root / "releases" / previous / "unit").read_text(encoding="utf-8")
    return place.exists() and place.read_text(encoding="utf-8") == wanted


def prune(root: Path, state: Path, keep: int) -> dict[str, object]:
    """Remove old releases, then environments that no release is left to use."""
    pending = read_pending(state) or {}
    links = [
        os.path.basename(os.readlink(p))
        for p in (root / "current", root / "previous")
        if p.is_symlink()
    ]
    needed = {*links, pending.get("release"), pending.get("previous")}
    releases = sorted((root / "releases").iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)
    spare = [path for path in releases if path.name not in needed]
    removed = [path.name for path in spare[keep:]]
    for path in spare[keep:]:
        shutil.rmtree(path)
    used = {
        (read_json(p / "profile.json") or {}).get("venv") for p in (root / "releases").iterdir()
    }
    for path in (root / "venvs").iterdir():
        # An unfinished one may be what an earlier run still builds.
        building = systemctl("is-active", "--quiet", f"glm5-job-venv-{path.name}", check=False)
        if path.name not in used and not building:
            removed.append(f"venvs/{path.name}")
            shutil.rmtree(path)
    return {"removed": removed}


def check(root: Path, state: Path) -> dict[str, object]:
    """What the timer calls: revert past the deadline, rest where nothing is pending."""
    pending = read_pending(state)
    if pending is None:
        for service in UNITS.glob("*-confirm.service"):
            if watches(service, root):
                timer = service.with_suffix(".timer").name
                systemctl("stop", "--no-block", timer, check=False)
        return {"pending": None}
    left = seconds_left(pending)
    if left > 0:
        return {"pending": pending["release"], "seconds_left": round(left)}
    why = "not confirmed by its deadline; reverted by the host itself"
    return revert(root, state, pending["release"], why)


def main(words: list[str]) -> None:
    root, verb = Path(words[0]), words[1]
    # A connection that drops ends the command that it carries; what was begun here is finished.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    state = root / "state"
    state.mkdir(parents=True, exist_ok=True)
    with exclusive(state):
        if verb == "switch":
            done = switch(root, state, json.load(sys.stdin))
        elif verb == "prune":
            done = prune(root, state, int(words[2]))
        elif verb == "extend":
            done = extend(state, float(words[2]))
        elif verb == "confirm":
            done = confirm(root, state, words[2])
        elif verb == "revert":
            done = revert(root, state, words[2], words[3])
        else:
            done = check(root, state)
    print(json.dumps(done))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
