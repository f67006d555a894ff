"""The whole path on one host: preflight, up, smoke, logs, again, changed, failed, back, down.

usage: python tests/gpu/host/walk.py --inventory FILE --host NAME --out DIR [--memory]

The inventory names a host that serves nothing yet, and a profile whose smoke test it passes. Each
step is a run of ``glm5-deploy`` as a user types it. DIR gets what each said (NN-NAME.txt), and
results.json with exit codes, seconds, releases and rows. The status is 0 where every step did what
it should; the first that does not ends the walk, after ``logs --explain``.

Written for a GPU host whose loads take a minute: four loads, no fixed pause. It runs anywhere;
tests/e2e/test_gpu_walk.py walks on a test host.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

IMPOSSIBLE = "this text is no answer of any model"
CHANGED = {"serve": {"args": {"max-num-seqs": 16}}}
FAILING = {
    "serve": {"args": {"max-num-seqs": 8}},
    "smoke": {"expect": [{"prompt": "Hello", "max_tokens": 4, "contains": IMPOSSIBLE}]},
}
REFUSED = {"serve": {"args": {"max-num-sequences": 8}}}
"""vLLM has no such argument; it is asked while the server of before still answers."""

STEP_LIMIT = 1800


class WalkError(Exception):
    """A step did not do what it should."""


@dataclass(frozen=True)
class Step:
    """One command.

    Args:
        name: of the file that its output goes to.
        words: after ``glm5-deploy``.
        override: profile keys that differ from the inventory's, for this step.
        exit_code: that is right; None where `check` alone judges.
        check: raises `WalkError` where the host's part of the JSON document is not right; it gets
            the host's parts of all earlier steps by their names, too.
    """

    name: str
    words: tuple[str, ...]
    override: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = 0
    check: Callable[[dict[str, Any], Mapping[str, dict[str, Any]]], None] | None = None


@dataclass
class Done:
    """What a step left."""

    name: str
    command: str
    exit_code: int
    seconds: float
    status: str | None
    release: str | None
    checks: list[dict[str, Any]]
    error: str | None = None


def require(holds: bool, text: str) -> None:
    if not holds:
        raise WalkError(text)


def ready(found: dict[str, Any], _: Mapping[str, Any]) -> None:
    bad = [row["name"] for row in found["checks"] if row["status"] == "failed"]
    require(not bad, f"checks failed: {', '.join(bad)}")


def served(found: dict[str, Any], _: Mapping[str, Any]) -> None:
    require(found["status"] == "changed", f"status {found['status']}, not changed")
    require(bool(found["release"]), "no release")


def unchanged(found: dict[str, Any], _: Mapping[str, Any]) -> None:
    require(found["status"] == "unchanged", f"status {found['status']}, not unchanged")
    require(found["changes"] == [], f"changes: {found['changes']}")


def another(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
    served(found, before)
    require(found["release"] != before["up"]["release"], "a changed argument made no new release")
    stages = {change["stage"] for change in found["changes"]}
    require("venv" not in stages, "a changed argument built another environment")


def refused(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
    said = str((found.get("error") or {}).get("message"))
    require("vLLM refuses to serve this; nothing was switched" in said, f"it said: {said}")
    require(found["release"] == before["up"]["release"], f"on {found['release']} now")


def taken_back(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
    require(found["status"] == "reverted", f"status {found['status']}, not reverted")
    require(found["release"] == before["changed"]["release"], f"on {found['release']} now")


def back(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
    require(found["release"] == before["up"]["release"], f"on {found['release']}, not the first")


def measured(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
    require(not found.get("error"), f"not measured: {found.get('error')}")
    ready(found, before)


WITHIN = {"weights": 0.03, "kv_tokens": 0.05}
"""How far the memory plan may be from what vLLM reports."""


def as_planned(found: dict[str, Any], _: Mapping[str, Any]) -> None:
    ratios = (found.get("memory") or {}).get("planned_over_measured") or {}
    for name, share in WITHIN.items():
        require(name in ratios, f"vLLM's journal says nothing of {name}")
        text = f"{name}: planned {ratios.get(name)} of what vLLM reports"
        require(abs(ratios.get(name, 0) - 1) <= share, text)


def steps(*, memory: bool = False) -> tuple[Step, ...]:
    """The walk; the JSON of a step is read where it has a check.

    Args:
        memory: compare the memory plan with what the server reports, measure its speed, and let
            vLLM refuse an argument: a GGUF model on GPUs, with real vLLM.
    """
    bench = ("bench", "--concurrency", "1,8", "--prompt-tokens", "1000", "--limit", "120")
    beside = (
        Step("memory", ("plan", "--memory"), check=as_planned),
        Step("bench", bench, check=measured),
    )
    measured_too = beside if memory else ()
    mistake = (Step("refused", ("up",), REFUSED, exit_code=1, check=refused),) if memory else ()
    return (
        Step("preflight", ("preflight",), check=ready),
        Step("up", ("up",), check=served),
        Step("smoke", ("smoke",), check=ready),
        *measured_too,
        Step("logs", ("logs", "-n", "200")),
        Step("again", ("up",), check=unchanged),
        *mistake,
        Step("changed", ("up",), CHANGED, check=another),
        Step("failing", ("up",), FAILING, exit_code=4, check=taken_back),
        Step("rollback", ("rollback",), CHANGED, check=back),
        Step("status", ("status",), CHANGED),
        Step("down", ("down", "--yes"), CHANGED),
    )


def merged(base: Any, top: Any) -> Any:  # noqa: ANN401
    """Mappings merge, anything else replaces."""
    if not isinstance(base, dict) or not isinstance(top, dict):
        return copy.deepcopy(top)
    return {**base, **{key: merged(base.get(key), value) for key, value in top.items()}}


@dataclass(frozen=True)
class Walk:
    """Where it walks, and where it writes.

    Args:
        program: that is ``glm5-deploy``.
    """

    inventory: Path
    host: str
    out: Path
    program: Sequence[str] = (sys.executable, "-m", "glm5_deploy")

    def run(self, only: Sequence[Step]) -> list[Done]:
        """All steps, until one fails.

        Raises:
            WalkError: naming the step; what was done is in results.json.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        done: list[Done] = []
        before: dict[str, dict[str, Any]] = {}
        try:
            for number, step in enumerate(only, 1):
                found, one = self._step(number, step)
                done.append(one)
                self._judge(step, one, found, before)
                before[step.name] = found
        finally:
            text = json.dumps([asdict(each) for each in done], indent=1) + "\n"
            (self.out / "results.json").write_text(text)
        return done

    def _step(self, number: int, step: Step) -> tuple[dict[str, Any], Done]:
        words = [*step.words, "--host", self.host, "-i", str(self._inventory(step))]
        if step.check is not None:
            words.append("--json")
        started = time.monotonic()
        ended = subprocess.run(
            [*self.program, *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=STEP_LIMIT, env={**os.environ, "COLUMNS": "110", "NO_COLOR": "1"},
        )  # fmt: skip
        seconds = time.monotonic() - started
        said = f"$ glm5-deploy {' '.join(step.words)}\n{ended.stderr}{ended.stdout}"
        said += f"[exit {ended.returncode}] {seconds:.1f} s\n"
        (self.out / f"{number:02}-{step.name}.txt").write_text(said)
        print(f"{step.name}: exit {ended.returncode}, {seconds:.1f} s", flush=True)
        found = self._document(ended.stdout) if step.check is not None else {}
        rows = [row for row in found.get("checks", []) if isinstance(row, dict)]
        command = f"glm5-deploy {' '.join(step.words)}"
        error = (found.get("error") or {}).get("message")
        return found, Done(
            step.name, command, ended.returncode, round(seconds, 2), found.get("status"),
            found.get("release"), rows, error,
        )  # fmt: skip

    def _inventory(self, step: Step) -> Path:
        """The inventory with this step's override, beside the first, so that paths still hold."""
        if not step.override:
            return self.inventory
        document = yaml.safe_load(self.inventory.read_text())
        hosts = document["hosts"]
        hosts[self.host] = merged(hosts[self.host] or {}, {"override": dict(step.override)})
        path = self.inventory.with_name(f"{self.inventory.stem}-walk.yml")
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def _document(self, text: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(text)["hosts"][self.host]
        except (ValueError, KeyError) as error:
            raise WalkError(f"no JSON document of {self.host}: {text[:200]!r}") from error
        return found

    def _judge(
        self, step: Step, one: Done, found: dict[str, Any], before: Mapping[str, dict[str, Any]]
    ) -> None:
        try:
            if step.exit_code not in (None, one.exit_code):
                error = found.get("error") or {}
                raise WalkError(f"exit {one.exit_code}, {step.exit_code} is right: {error}")
            if step.check is not None:
                step.check(found, before)
        except WalkError as error:
            explained = Step("explain", ("logs", "--explain", "-n", "400"), step.override)
            self._step(99, explained)
            raise WalkError(f"{step.name}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inventory", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--memory", action="store_true", help="check the memory plan, too")
    given = parser.parse_args()
    walk = Walk(given.inventory.resolve(), given.host, given.out)
    try:
        walk.run(steps(memory=given.memory))
    except WalkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
