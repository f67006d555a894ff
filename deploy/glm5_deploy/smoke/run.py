"""Run the checks against one server and report each as a row."""

from __future__ import annotations

import time

from glm5_deploy.config.models import Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import Check
from glm5_deploy.smoke.api import AnswerError, Api
from glm5_deploy.smoke.checks import suite
from glm5_deploy.smoke.context import CheckFailed, CheckSkipped, Context, Probe
from glm5_deploy.smoke.transport import client_for

_REQUEST_SECONDS = 60.0


def run_smoke(
    host: Host,
    target: Target,
    events: Events,
    *,
    api_key: Secret | None,
    deadline: float | None = None,
    request_timeout: float = _REQUEST_SECONDS,
) -> tuple[Check, ...]:
    """Ask the server everything; a check that fails is a row, never an exception.

    Args:
        deadline: monotonic time (`time.monotonic`) by which all must be done; default: now plus
            the profile's ``limits.smoke``. What is left then fails (the first) or is skipped.
        request_timeout: seconds that one request may take.

    Raises:
        UnreachableError: the SSH session is gone.
    """
    until = time.monotonic() + target.profile.limits.smoke if deadline is None else deadline
    with client_for(host, target, api_key) as client, client_for(host, target, None) as anonymous:
        api = Api(client, target.profile.served_model_name, until, request_timeout)
        return _all(Context(host, target, api, anonymous, api_key), events)


def _all(context: Context, events: Events) -> tuple[Check, ...]:
    rows: list[Check] = []
    reason: str | None = None
    probes = suite(context)
    for number, (name, probe) in enumerate(probes):
        events.progress(
            context.host.name, f"check {number + 1}/{len(probes)}: {name}", number / len(probes)
        )
        if reason is not None:
            row = Check(name, "skipped", reason)
        elif time.monotonic() > context.api.deadline:
            row, reason = _late(name)
        else:
            row = _measured(name, probe, context)
            reason = "the server is not healthy" if _unhealthy(row) else None
        rows.append(row)
        events.check(context.host.name, row)
    return tuple(rows)


def _key_hint(error: AnswerError) -> str | None:
    if error.status not in (401, 403):
        return None
    return "the key here (secrets.VLLM_API_KEY) is not the one that the server was started with"


def _unhealthy(row: Check) -> bool:
    return row.name == "health" and row.status == "failed"


def _late(name: str) -> tuple[Check, str]:
    reason = "the time for the smoke test was over"
    return Check(name, "failed", reason, "raise limits.smoke, or see which check was slow"), reason


def _measured(name: str, probe: Probe, context: Context) -> Check:
    started = time.monotonic()
    hint: str | None = None
    try:
        status, detail = "passed", probe(context)
    except CheckSkipped as skipped:
        return Check(name, "skipped", str(skipped))
    except CheckFailed as failed:
        status, detail, hint = "failed", str(failed), failed.hint
    except AnswerError as error:
        status, detail, hint = "failed", str(error), _key_hint(error)
    if status == "failed" and hint is None:
        hint = f"glm5-deploy logs --host {context.host.name} --explain"
    seconds = time.monotonic() - started
    return Check(name, "failed" if status == "failed" else "passed", detail, hint, seconds)
