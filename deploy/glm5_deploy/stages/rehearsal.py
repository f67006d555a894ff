"""The last step before a running server is stopped: vLLM reads what it will be started with."""

from __future__ import annotations

from glm5_deploy.config.serving import runs_vllm
from glm5_deploy.hosts.sandbox import variables_of
from glm5_deploy.rehearsal import rehearsal_command
from glm5_deploy.stages.arguments import engine_words
from glm5_deploy.stages.change import Change, Rehearse
from glm5_deploy.stages.desired import Desired, interpreter
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.release import STAGE


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """One change where the engine is ``vllm serve`` of an environment of ours, and the profile does
    not leave it out; else none.
    """
    if _would_take_folders(desired, observed):
        return []
    profile, venv = desired.target.profile, desired.venv
    limit = profile.limits.rehearsal
    if venv is None or limit == 0 or not runs_vllm(profile):
        return []
    paths, release = desired.paths, desired.release
    folder = paths.venv(venv.identifier)
    words = engine_words(desired.target, folder, interpreter(desired.target))
    if words[0] != str(folder / "bin" / "vllm"):
        return []
    command = rehearsal_command(
        folder / "bin" / "python",
        paths.library / "rehearse.py",
        words[1:],
        release.text("unit"),
        [
            # A model's configuration may have to be fetched with them.
            *variables_of(paths.release(release.identifier) / "environment"),
            *variables_of(paths.release(release.identifier) / "secrets"),
            *("-p", f"WorkingDirectory=/var/lib/{profile.unit_name.removesuffix('.service')}"),
        ],
        limit,
    )
    step = Rehearse(command, limit, tuple(profile.serve.options), tuple(desired.secrets.values()))
    return [Change(STAGE, "verify", "arguments", "vLLM reads them on this host", (step,))]


def _would_take_folders(desired: Desired, observed: Observed) -> bool:
    """Whether the service changes its user: systemd gives its state and caches to whoever a unit
    runs as, and the server that still runs would lose them.
    """
    before = observed.deployment.file(desired.paths.unit_file)
    user = f"User={desired.target.profile.unit.user}"
    return before is not None and user not in before.splitlines()
