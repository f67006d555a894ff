"""What vLLM itself says to the words that it is to be started with, on the host, before the server
that runs is stopped: see `onhost/rehearse.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from glm5_deploy.errors import CommandFailedError, PreflightError
from glm5_deploy.hosts.command import Command, Secret, without
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.lines import tail
from glm5_deploy.hosts.sandbox import sandboxed
from glm5_deploy.report.outcome import Check

NAME = "arguments"
_MARK = "REHEARSAL "
_SKIP = "limits.rehearsal: 0 in the profile leaves this question out"
_LINES = 12


def rehearsal_command(
    python: PurePosixPath,
    program: PurePosixPath,
    words: Iterable[str],
    unit: str,
    options: list[str],
    limit: int,
) -> Command:
    """The rehearsal in the sandbox of the service.

    Args:
        words: from ``serve`` on.
        unit, options, limit: see `hosts.sandbox`.
    """
    return sandboxed(
        python, program, "--", *words, unit=unit, options=options, purpose=NAME, limit=limit
    )


def run_rehearsal(
    host: Host, command: Command, limit: int, known: Iterable[str], hidden: tuple[Secret, ...] = ()
) -> Check:
    """Run it as root on a host.

    Args:
        hidden: shows nowhere, whatever vLLM says.

    Raises:
        PreflightError: vLLM refuses, with its own words.
        CommandFailedError: it gave no answer, with the end of what it said.
        CommandTimeoutError: it was still running at the limit.
    """
    result = host.run(command, sudo=True, timeout=limit + 30, check=False)
    check = parse_answer(result.stdout, known, hidden)
    if check is None:
        said = tail(without(hidden, result.stderr or result.stdout), _LINES)
        raise CommandFailedError(
            f"{host.name}: vLLM gave no answer about its arguments"
            f" (status {result.returncode}): {said}",
            f"mend what it says, or raise limits.rehearsal ({limit} s) where it was ended for it; "
            f"{_SKIP}",
        )
    if check.status == "failed":
        raise PreflightError(
            f"{host.name}: vLLM refuses to serve this; nothing was switched\n{_indented(check)}",
            check.hint or f"mend what it says; where vLLM is wrong, {_SKIP}",
        )
    return check


def parse_answer(
    output: str, known: Iterable[str], hidden: tuple[Secret, ...] = ()
) -> Check | None:
    """The program's answer among what vLLM says, as a row; None where there is none."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    try:
        answer = json.loads(lines[-1].removeprefix(_MARK))
        status, detail = answer["status"], without(hidden, str(answer["detail"]))
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    if status not in {"passed", "failed", "skipped"}:
        return None
    return Check(NAME, status, detail, _hint(detail, known) if status == "failed" else None)


def _hint(detail: str, known: Iterable[str]) -> str | None:
    """Where in the profile it is; else what is known about such a failure."""
    from glm5_deploy.logs.explain import explain

    named = re.findall(r"--(?:no-)?([a-z0-9][a-z0-9-]*)", detail.replace("_", "-"))
    keys = set(known)
    for name in named:
        if name in keys:
            return f"correct serve.args.{name} in the profile"
    found = explain(detail.splitlines())
    return f"{found[0].cause} {found[0].remedy}".strip() if found else None


def _indented(check: Check) -> str:
    lines = check.detail.strip().splitlines()
    more = ["…"] if len(lines) > _LINES else []
    return "\n".join(f"    {line}" for line in [*lines[:_LINES], *more])
