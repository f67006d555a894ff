"""Everything that would make a deployment fail, found before anything is changed, all at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

from glm5_deploy.config.models import ModelFiles
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages import system
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.model import host_manifest, incomplete
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.packages import distribution_has_python, package_manager
from glm5_deploy.stages.systemd import double_specifiers

MIN_SYSTEMD = 247
MAX_CLOCK_SKEW = 30.0
GIB = 1 << 30

Probe = Callable[[Desired, Observed], Check]


def passed(name: str, detail: str) -> Check:
    return Check(name, "passed", detail)


def failed(name: str, detail: str, hint: str) -> Check:
    return Check(name, "failed", detail, hint)


def preflight(desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """One row for each thing looked at."""
    probes: tuple[Probe, ...] = (
        platform, privileges, systemd, clock, packages, python, engine, disk, memory, port, owner,
        gpus, model,
    )  # fmt: skip
    return tuple(probe(desired, observed) for probe in probes)


def platform(desired: Desired, observed: Observed) -> Check:
    architecture = observed.system.machine.architecture
    detail = f"{observed.system.os.pretty}, {architecture}"
    if architecture not in {"x86_64", "amd64"} and desired.venv is not None:
        return failed("system", detail, "the locks are for x86_64")
    return passed("system", detail)


def privileges(desired: Desired, observed: Observed) -> Check:
    state, user = observed.system.sudo, observed.system.machine.user
    if state in {"root", "nopasswd"}:
        return passed("sudo", "root" if state == "root" else f"{user}, no password")
    become = desired.target.settings.become
    if state == "password" and become.password is not None:
        return passed("sudo", f"{user}, with a password")
    hints = {
        "password": "set become.password in the inventory, for example ${env:SUDO_PASSWORD}",
        "missing": "install sudo, or connect as root",
        "refused": f"allow {user} to use sudo, or connect as another user",
    }
    return failed("sudo", f"{user}: {state}", hints.get(state, "connect as root"))


def systemd(_desired: Desired, observed: Observed) -> Check:
    version = observed.system.systemd.version
    if not version or observed.system.systemd.state in {"", "offline"}:
        return failed(
            "systemd", "not running here", "the service is a systemd unit: use such a host"
        )
    if version < MIN_SYSTEMD:
        hint = f"version {MIN_SYSTEMD} or later is needed (Debian 11, Ubuntu 22.04, RHEL 9)"
        return failed("systemd", f"version {version}", hint)
    return passed("systemd", f"version {version}")


def clock(_desired: Desired, observed: Observed) -> Check:
    skew = observed.system.machine.clock - time.time()
    if abs(skew) > MAX_CLOCK_SKEW:
        hint = "set the host's clock, for example with `timedatectl set-ntp true`"
        return failed("clock", f"{skew:+.0f} s from here", hint)
    return passed("clock", f"{skew:+.1f} s from here")


def packages(desired: Desired, observed: Observed) -> Check:
    absent = observed.deployment.absent_packages
    lacking = [*(need.name for need in system.lacking(desired, observed)), *absent]
    if not lacking:
        return passed("packages", "nothing is lacking")
    names = ", ".join(lacking)
    manager = package_manager(observed.system.tools)
    if manager is None:
        return failed("packages", f"lacking: {names}", "no package manager we know: install these")
    wanted = system.missing_packages(desired, observed, manager)
    if not desired.target.settings.packages.install:
        hint = f"run `{manager.manual(wanted)}`, or set packages.install: true"
        return failed("packages", f"lacking: {names}", hint)
    return passed("packages", f"to install: {' '.join(wanted)}")


def python(desired: Desired, observed: Observed) -> Check:
    version, settings = desired.target.profile.engine.python, desired.target.settings
    found = system.usable_python(desired, observed)
    if found is not None:
        return passed("python", str(found))
    if settings.python is not None:
        hint = f"name an interpreter of Python {version} that is there"
        return failed("python", f"{settings.python} is not Python {version}", hint)
    if settings.python_tree is not None:
        return passed("python", f"carried from {settings.python_tree}")
    there = ", ".join(python.minor for python in observed.system.pythons) or "none"
    known = distribution_has_python(observed.system.os.id, observed.system.os.version_id, version)
    if known is False:
        hint = (
            f"{observed.system.os.pretty} does not package Python {version}: set python to an "
            "interpreter on the host, or python_tree to a relocatable Python here (`uv python dir`)"
        )
        return failed("python", f"{version} wanted, there: {there}", hint)
    return passed("python", f"{version} to install, there: {there}")


def engine(desired: Desired, observed: Observed) -> Check:
    missing = observed.deployment.engine_missing
    if missing is not None:
        hint = "correct engine.command, or set engine.lock so that it is installed"
        return failed("engine", f"{missing} is not there, or cannot be executed", hint)
    lock = None if desired.venv is None else desired.venv.lock_name
    return passed("engine", lock or desired.target.profile.engine.command[0])


def disk(desired: Desired, observed: Observed) -> Check:
    root, needs = desired.paths.root, desired.target.profile.needs
    mount = observed.system.disk_for(root)
    if mount is None:
        return Check("disk", "skipped", f"no mount found for {root}")
    need = (
        int(needs.disk_gib * GIB)
        if desired.venv is not None and not _built(desired, observed)
        else 0
    )
    need += _missing_model_bytes(desired, observed)
    free = mount.available
    detail = f"{free / GIB:.1f} GiB free on {mount.mount}, {need / GIB:.1f} GiB needed"
    if free < need:
        hint = f"free space on {mount.mount}, or set root to a larger disk"
        return failed("disk", detail, hint)
    return passed("disk", detail)


def _built(desired: Desired, observed: Observed) -> bool:
    return desired.venv is not None and desired.venv.identifier in observed.deployment.venvs


def _missing_model_bytes(desired: Desired, observed: Observed) -> int:
    if desired.manifest is None or desired.target.profile.model.source is None:
        return 0
    lacking = incomplete(desired.manifest, observed.deployment.model_files or {})
    return sum(desired.manifest.sizes.get(name, 0) for name in lacking)


def memory(desired: Desired, observed: Observed) -> Check:
    need = desired.target.profile.needs.memory_gib * GIB
    total = observed.system.machine.memory_total
    detail = f"{total / GIB:.1f} GiB, {need / GIB:.1f} GiB needed"
    if total < need:
        return failed("memory", detail, "use a larger host, or lower needs.memory_gib")
    return passed("memory", detail)


def _ours(desired: Desired, observed: Observed, pid: int | None) -> bool:
    """Whether a listener belongs to the service that is being replaced."""
    port, incumbent = desired.target.profile.serve.port, observed.deployment.incumbent
    if incumbent is not None and incumbent.running:
        text = observed.deployment.file(desired.paths.current / "unit") or ""
        return pid == incumbent.main_pid or f'"--port" "{port}"' in text
    running = observed.unit.active_state in {"active", "activating", "deactivating", "reloading"}
    if not running:
        return False
    text = observed.deployment.file(desired.paths.unit_file) or ""
    return pid == observed.unit.main_pid or f'"--port" "{port}"' in text


def port(desired: Desired, observed: Observed) -> Check:
    wanted = desired.target.profile.serve.port
    for listener in observed.system.ports:
        if listener.port != wanted or _ours(desired, observed, listener.pid):
            continue
        who = f"{listener.process or 'an unknown process'} (pid {listener.pid or '?'})"
        hint = "stop it, or set serve.port to a free port"
        return failed("port", f"{wanted} is taken by {who}", hint)
    return passed("port", f"{wanted} is free or ours")


def owner(desired: Desired, observed: Observed) -> Check:
    """A unit of this name that was deployed from another root, or not by us at all."""
    unit, root = desired.paths.unit, desired.paths.root
    text = observed.deployment.file(desired.paths.unit_file)
    if text is None:
        return passed("unit", f"{unit} is new here")
    folder = f"EnvironmentFile={double_specifiers(str(root))}/releases/"
    if folder in text:
        return passed("unit", f"{unit} is ours")
    if observed.unit.active_state in {"inactive", "failed"} and observed.unit.enabled != "enabled":
        return passed("unit", f"{unit} is there, but not in use")
    other = re.search(r"^EnvironmentFile=(.+)/releases/", text, re.MULTILINE)
    if other is None or "glm5-deploy" not in text:
        hint = f"give the service another name, or remove {desired.paths.unit_file}"
        return failed("unit", f"{unit} is there, but not from this program", hint)
    there = other.group(1).replace("%%", "%")
    hint = f"run `glm5-deploy down` with root: {there} first, or set that root again"
    return failed("unit", f"{unit} is deployed from {there}, not from {root}", hint)


def gpus(desired: Desired, observed: Observed) -> Check:
    wanted, found = desired.target.profile.gpus, observed.system.gpus.gpus
    if wanted.count == 0:
        return Check("gpus", "skipped", "the profile wants none")
    if observed.system.gpus.problem:
        hint = "install or repair the NVIDIA driver; `nvidia-smi` must work on the host"
        return failed("gpus", observed.system.gpus.problem, hint)
    if len(found) < wanted.count:
        hint = f"lower {_count_of_gpus(desired)}, or use another host"
        return failed("gpus", f"{len(found)} found, {wanted.count} wanted", hint)
    problem = next(_gpu_problems(desired, observed), None)
    if problem is not None:
        return failed("gpus", *problem)
    return passed("gpus", f"{len(found)} × {found[0].name}")


def _count_of_gpus(desired: Desired) -> str:
    """Where the number is said: profiles that several sizes of hosts share take a variable."""
    if "gpus" in desired.target.settings.vars:
        return "vars.gpus"
    return "gpus.count with tensor-parallel-size (or the variable that the profile takes them from)"


def _gpu_problems(desired: Desired, observed: Observed) -> Iterator[tuple[str, str]]:
    wanted, found = desired.target.profile.gpus, observed.system.gpus.gpus
    indices = {gpu.index for gpu in found}
    for index in wanted.devices or []:
        if index not in indices:
            yield f"gpus.devices names {index}", f"there are {sorted(indices)}"
    if wanted.min_memory_gib:
        for gpu in found:
            if gpu.memory_total < wanted.min_memory_gib * GIB:
                have = f"GPU {gpu.index} has {gpu.memory_total / GIB:.0f} GiB"
                yield have, f"gpus.min_memory_gib is {wanted.min_memory_gib}"
    driver = observed.system.gpus.driver
    if wanted.min_driver and driver and _numbers(driver) < _numbers(wanted.min_driver):
        yield f"driver {driver}", f"the lock needs driver {wanted.min_driver} or later"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def model(desired: Desired, observed: Observed) -> Check:
    spec, files = desired.target.profile.model, observed.deployment.model_files
    folder = desired.paths.model
    if spec.source is not None:
        return _source(desired)
    if not files:
        hint = f"put the model's files there, or set model.source to a folder here ({spec.name})"
        return failed("model", f"no files in {folder}", hint)
    manifest = host_manifest(desired, observed)
    lacking = [] if manifest is None else list(incomplete(manifest, files))
    lacking += [name for name in _required(spec) if not _matches(name, files)]
    if lacking:
        return failed("model", f"{folder} lacks {', '.join(lacking[:5])}", "complete the folder")
    return passed("model", f"{len(files)} files in {folder}")


def _source(desired: Desired) -> Check:
    spec, manifest = desired.target.profile.model, desired.manifest
    names = {} if manifest is None else manifest.entries
    lacking = [name for name in _required(spec) if not _matches(name, names)]
    if lacking:
        hint = "complete the folder, or change model.required"
        return failed("model", f"{spec.source} lacks {', '.join(lacking)}", hint)
    return passed("model", f"{len(names)} files from {spec.source}")


def _required(spec: ModelFiles) -> list[str]:
    """Names and globs that must be there: the profile's, and what vLLM is told to load."""
    return [*spec.required, *([] if spec.serve == "." else [spec.serve])]


def _matches(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)
