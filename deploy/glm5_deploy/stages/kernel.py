"""Our kernels in the environment: the last step that makes one complete; then the doctor, before
anything is switched.
"""

from __future__ import annotations

from glm5_deploy.hosts.command import command
from glm5_deploy.hosts.sandbox import variables
from glm5_deploy.kernel_doctor import LIMIT, doctor_command
from glm5_deploy.stages.change import Change, Examine, Rsync, Transient
from glm5_deploy.stages.desired import Desired, service_environment
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.venv import uv_on_host

STAGE = "kernel"


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Install the wheel into an environment that is being built, and examine a host that is about
    to be switched.
    """
    return [*_install(desired, observed), *_examine(desired, observed)]


def _install(desired: Desired, observed: Observed) -> list[Change]:
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


def _examine(desired: Desired, observed: Observed) -> list[Change]:
    """For every new release: its variables, GPUs and sandbox may differ, not only what is
    installed. One that was refused is not current, so that the next run asks again.
    """
    venv, deployed = desired.venv, observed.deployment
    if venv is None or venv.wheel is None:
        return []
    if deployed.current == desired.release.identifier and venv.identifier in deployed.venvs:
        return []
    doctor = doctor_command(
        desired.paths.venv(venv.identifier),
        desired.release.text("unit"),
        variables(service_environment(desired.target)),
    )
    step = Examine(doctor, LIMIT)
    return [Change(STAGE, "verify", "doctor", "the kernels on this host", (step,))]
