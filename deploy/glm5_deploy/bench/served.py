"""What is served on a host, and why it might not be measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.config.models import Target
from glm5_deploy.errors import PreflightError
from glm5_deploy.hosts.command import Secret, command, script
from glm5_deploy.hosts.host import Host
from glm5_deploy.smoke.api import AnswerError, Api, number, records, shorten
from glm5_deploy.stages.record import parse_record
from glm5_deploy.status.probe import read_load

JOB = "glm5-job-bench-"
_SECONDS = 15.0
_LOOK = r"""
root=$1 unit=$2 jobs=$3
readlink -- "$root/current" || :
echo --glm5--
cat -- "$root/current/profile.json" 2>/dev/null || :
echo --glm5--
systemctl show -p ActiveState -p SubState -p InvocationID -- "$unit"
echo --glm5--
systemctl list-units --plain --no-legend --full --state=running "$jobs*" | cut -d ' ' -f 1
"""


@dataclass(frozen=True)
class Served:
    """What a host serves now.

    Args:
        release: its id.
        python: of the environment that is served.
        invocation: changes with each start of the server.
        benchmarks: units of benchmarks that run now.
    """

    release: str
    python: PurePosixPath
    invocation: str
    benchmarks: tuple[str, ...]


def read_served(host: Host, target: Target) -> Served:
    """Look at a host's release and unit, in one round trip.

    Raises:
        PreflightError: nothing is deployed, it does not run, or it has no environment of ours.
        RecordError: what its release says of itself is damaged.
    """
    unit = target.profile.unit_name
    said = host.run(script(_LOOK, target.root, unit, JOB)).stdout
    link, profile, state, jobs = (part.strip() for part in said.split("--glm5--\n"))
    if not link or not profile:
        raise PreflightError("nothing is deployed here", f"glm5-deploy up --host {host.name}")
    values = dict(line.split("=", 1) for line in state.splitlines() if "=" in line)
    if values.get("ActiveState") != "active":
        raise PreflightError(*_not_active(host.name, unit, values))
    venv = parse_record(profile, f"{host.name}: profile.json of {link}").venv
    if venv is None:
        raise PreflightError(
            "the server runs in no environment of ours, so vLLM's benchmark cannot be found",
            "deploy with engine.lock or engine.base",
        )
    python = target.root / "venvs" / venv / "bin" / "python"
    running = tuple(name.removesuffix(".service") for name in jobs.split())
    return Served(PurePosixPath(link).name, python, values.get("InvocationID", ""), running)


def invocation(host: Host, target: Target) -> str | None:
    """What `Served.invocation` is now; None where the server does not run."""
    unit = target.profile.unit_name
    look = command("systemctl", "show", "-p", "ActiveState", "-p", "InvocationID", "--", unit)
    values = dict(line.partition("=")[::2] for line in host.run(look).stdout.splitlines())
    return values.get("InvocationID") if values.get("ActiveState") == "active" else None


def _not_active(host: str, unit: str, values: dict[str, str]) -> tuple[str, str]:
    state = values.get("ActiveState", "unknown")
    if state == "inactive":
        return f"{unit} is stopped", f"glm5-deploy up --host {host}"
    sub = values.get("SubState", "")
    return f"{unit} is {state} ({sub})", f"glm5-deploy logs --host {host} --explain"


@dataclass(frozen=True)
class Answering:
    """What the server itself says.

    Args:
        room: tokens of prompt and answer that it takes; None where it does not say.
        busy: requests of others that it works on or lets wait.
    """

    room: int | None
    busy: int


def ask(host: Host, target: Target, api_key: Secret | None) -> Answering:
    """Ask the server for its health, its model and its load.

    Raises:
        PreflightError: it does not answer, wants another key, or serves another model.
    """
    from glm5_deploy.smoke.transport import client_for

    with client_for(host, target, api_key) as client:
        name = target.profile.served_model_name
        api = Api(client, name, time.monotonic() + 4 * _SECONDS, _SECONDS)
        try:
            status = api.status("/health")
            rows = records(api.get("/v1/models"), "data") if status == 200 else []
        except AnswerError as error:
            raise _refused(host.name, error) from error
    if status != 200:
        hint = f"wait until it is: glm5-deploy status --host {host.name}"
        raise PreflightError(f"the server is not healthy: /health answers {status}", hint)
    found = next((row for row in rows if row.get("id") == name), None)
    if found is None:
        names = shorten(", ".join(str(row.get("id")) for row in rows)) or "nothing"
        raise PreflightError(
            f"the server serves {names}, not {name}", f"glm5-deploy up --host {host.name}"
        )
    load = read_load(host, target)
    busy = 0 if load is None else load.running + load.waiting
    return Answering(number(found.get("max_model_len")), busy)


def _refused(host: str, error: AnswerError) -> PreflightError:
    if error.status in (401, 403):
        hint = "secrets.VLLM_API_KEY here is not the key that the server was started with"
        return PreflightError(f"the server refuses the key: {error}", hint)
    hint = f"it may still be loading: glm5-deploy status --host {host}"
    return PreflightError(f"the server does not answer: {error}", hint)
