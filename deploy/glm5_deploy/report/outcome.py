"""The outcome of a command on each host, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from glm5_deploy.errors import ExitCode, PreflightError, SmokeFailedError

Status = Literal[
    "unchanged", "changed", "failed", "reverted", "unreachable", "skipped", "interrupted"
]
CheckStatus = Literal["passed", "failed", "warning", "skipped"]

_EXIT_CODES: dict[Status, ExitCode] = {
    "unchanged": ExitCode.DONE,
    "changed": ExitCode.DONE,
    "skipped": ExitCode.DONE,
    "failed": ExitCode.HOST_FAILED,
    "reverted": ExitCode.SMOKE_FAILED,
    "unreachable": ExitCode.UNREACHABLE,
    "interrupted": ExitCode.INTERRUPTED,
}


@dataclass(frozen=True)
class Check:
    """One row of a preflight or smoke test: what was asked and what came back.

    Args:
        status: a warning stops nothing; it says what something will cost.
        hint: what to do about a row that failed or warns.
    """

    name: str
    status: CheckStatus
    detail: str = ""
    hint: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class ErrorReport:
    """An error as a user reads it."""

    message: str
    hint: str | None = None
    exit_code: ExitCode = ExitCode.HOST_FAILED


@dataclass(frozen=True)
class ChangeReport:
    """What was, or would be, changed."""

    stage: str
    action: str
    target: str


@dataclass(frozen=True)
class HostOutcome:
    """One host's row in every report."""

    host: str
    status: Status
    changes: tuple[ChangeReport, ...] = ()
    release: str | None = None
    seconds: float = 0.0
    checks: tuple[Check, ...] = ()
    error: ErrorReport | None = None
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        if self.status == "failed" and self.error is not None:
            return self.error.exit_code
        return _EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """The document of one host; keys as in the architecture page."""
        changes = [{"stage": c.stage, "action": c.action, "target": c.target} for c in self.changes]
        checks = [_row(check) for check in self.checks]
        error = (
            None if self.error is None else {"message": self.error.message, "hint": self.error.hint}
        )
        return {
            "status": self.status,
            "changes": changes,
            "release": self.release,
            "seconds": round(self.seconds, 3),
            "checks": checks,
            "error": error,
            **self.data,
        }


def _row(check: Check) -> dict[str, str]:
    row = {"name": check.name, "status": str(check.status), "detail": check.detail}
    tells = check.hint and check.status in {"failed", "warning"}
    return {**row, "hint": check.hint or ""} if tells else row


@dataclass(frozen=True)
class Report:
    """A whole command's outcome over its hosts."""

    command: str
    hosts: tuple[HostOutcome, ...]

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.worst([outcome.exit_code for outcome in self.hosts])

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "ok": self.exit_code is ExitCode.DONE,
            "hosts": {outcome.host: outcome.to_json() for outcome in self.hosts},
        }


class SmokeChecksError(SmokeFailedError):
    """Checks that failed, with all rows.

    Args:
        checks: every row of the test.
    """

    def __init__(self, host: str, checks: tuple[Check, ...]) -> None:
        failed = [check for check in checks if check.status == "failed"]
        rows = "\n".join(f"    {check.name}: {check.detail}" for check in failed)
        hint = next((check.hint for check in failed if check.hint), None)
        super().__init__(
            f"{host}: {len(failed)} of {len(checks)} smoke checks failed\n{rows}", hint
        )
        self.checks = checks


class DoctorChecksError(PreflightError):
    """glm5-kernel's doctor found what keeps this host from serving.

    Args:
        checks: every row of its answer.
    """

    def __init__(self, host: str, checks: tuple[Check, ...]) -> None:
        failed = [check for check in checks if check.status == "failed"]
        rows = "\n".join(f"    {check.name}: {check.detail}" for check in failed)
        hints = dict.fromkeys(check.hint for check in failed if check.hint)
        super().__init__(
            f"{host}: the kernel doctor refuses this host; nothing was switched\n{rows}",
            "; ".join(hints) or None,
        )
        self.checks = checks
