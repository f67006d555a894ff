"""Our kernels in the environment: the last step that makes one complete."""

from __future__ import annotations

from glm5_deploy.hosts.command import command
from glm5_deploy.stages.change import Change, Rsync, Transient
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.venv import uv_on_host

STAGE = "kernel"


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Install the wheel into an environment that is being built."""
    venv = desired.venv
    if venv is None or venv.wheel is None or venv.identifier in observed.deployment.venvs:
        return []
    paths = desired.paths
    folder, uploads = paths.venv(venv.identifier), paths.uploads / "kernel"
    install = command(
        "sh", paths.library / "install_wheel.sh", folder, uv_on_host(desired),
        uploads / venv.wheel.name, paths.cache / "uv", folder / ".done",
    )  # fmt: skip
    steps = (
        Rsync(venv.wheel, uploads, checksum=True),
        Transient(f"glm5-job-kernel-{venv.identifier}", install, limit=600),
    )
    return [Change(STAGE, "install", venv.wheel.name, "our kernels", steps)]
