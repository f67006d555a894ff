"""glm5-kernel's doctor on a host: `python -m glm5_kernel doctor --json`, and what it answers.

It runs in a transient unit as the server would: as its user, with its variables and its sandbox.
So it finds a GPU that only root may use, a missing compiler or a system call that is not allowed
before a server is stopped for them, and what Triton compiles lies in the service's own cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from glm5_deploy.errors import CommandFailedError
from glm5_deploy.hosts.command import Command, script
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.lines import tail
from glm5_deploy.hosts.sandbox import sandboxed, variables_of
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.record import parse_record

LIMIT = 300
"""Seconds that it may take: a first run imports torch from a cold disk and compiles all kernels."""

_CURRENT = 'cd -- "$1" && cat profile.json && printf "\\n%s\\n" "$2" && cat unit'
_MARK = "--- unit ---"


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's answer.

    Args:
        checks: its rows; `Check.hint` says what to do about one that failed.
        versions: by name; "absent" is an answer.
    """

    checks: tuple[Check, ...]
    versions: dict[str, str]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    def describe(self) -> str:
        """In a line: the vLLM, how many rows passed, and why others were skipped."""
        skipped = [check.detail for check in self.checks if check.status == "skipped"]
        passed = sum(check.status == "passed" for check in self.checks)
        text = f"vLLM {self.versions.get('vllm', 'unknown')}: {passed} passed"
        if skipped:
            text += f", {len(skipped)} skipped ({', '.join(dict.fromkeys(skipped))})"
        return text


@dataclass(frozen=True)
class Served:
    """What a host's current release says about the environment it runs in.

    Args:
        venv: its folder; None where it has no glm5-kernel.
        unit: the text of its unit.
    """

    venv: PurePosixPath | None
    unit: str


def doctor_command(
    venv: PurePosixPath, unit: str, environment: list[str], limit: int = LIMIT
) -> Command:
    """The doctor in the sandbox of the service; see `hosts.sandbox` for the arguments."""
    return sandboxed(
        venv / "bin" / "python", "-m", "glm5_kernel", "doctor", "--json",
        "--timeout", max(limit - 60, 10),
        unit=unit, options=environment, purpose="doctor", limit=limit,
    )  # fmt: skip


def run_doctor(host: Host, doctor: Command, limit: int = LIMIT) -> Diagnosis:
    """Run it as root on a host.

    Raises:
        CommandFailedError: it gave no answer, with the end of what it said.
        CommandTimeoutError: it was still running at the limit.
    """
    # The environment's first import may wait for a disk: systemd's limit is the one that counts.
    result = host.run(doctor, sudo=True, timeout=limit + 30, check=False)
    try:
        return parse_diagnosis(result.stdout)
    except ValueError as error:
        said = tail(result.stderr or result.stdout, 15)
        raise CommandFailedError(
            f"{host.name}: the doctor gave no answer (status {result.returncode}): {said}",
            "glm5-kernel and glm5-deploy must be of the same version; `up` installs it",
        ) from error


def parse_diagnosis(text: str) -> Diagnosis:
    """Read the doctor's JSON document.

    Raises:
        ValueError: it is none.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        checks = tuple(
            Check(row["name"], row["status"], row["detail"], row["hint"])
            for row in document["checks"]
        )
        return Diagnosis(checks, dict(document["versions"]))
    except (KeyError, TypeError) as error:
        raise ValueError("not a document of the doctor's") from error


def read_served(host: Host, root: PurePosixPath) -> Served:
    """What is served on a host, by its current release.

    Raises:
        CommandFailedError: nothing is deployed there.
        RecordError: what the release says of itself is damaged.
    """
    read = host.run(script(_CURRENT, root / "current", _MARK))
    profile, _, unit = read.stdout.partition(f"\n{_MARK}\n")
    record = parse_record(profile, f"{host.name}:{root}/current/profile.json")
    venv = record.venv if record.kernel else None
    return Served(None if venv is None else root / "venvs" / venv, unit)


def examine_served(host: Host, root: PurePosixPath, limit: int = LIMIT) -> Diagnosis | None:
    """Run the doctor in the environment that is served; None where it has no glm5-kernel.

    Raises:
        CommandFailedError: nothing is deployed, or the doctor gave no answer.
        RecordError: what the release says of itself is damaged.
        CommandTimeoutError: it was still running at the limit.
        SudoRefusedError: it takes root to run something as the service's user.
    """
    served = read_served(host, root)
    if served.venv is None:
        return None
    environment = variables_of(root / "current" / "environment")
    return run_doctor(host, doctor_command(served.venv, served.unit, environment, limit), limit)


def summary(failed: Sequence[Check]) -> str:
    """The first failed row, and how many more there are."""
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0].name}: {failed[0].detail}{more}"
