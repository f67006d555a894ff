"""Everything that would make a deployment fail, found before anything is changed, all at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from glm5_deploy.config.models import ModelFiles
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages import base, gpus, lock, system
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.model import host_manifest, incomplete
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.packages import distribution_has_python, package_manager
from glm5_deploy.stages.room import disk
from glm5_deploy.stages.systemd import double_specifiers

MIN_SYSTEMD = 247
MAX_CLOCK_SKEW = 30.0
GIB = 1 << 30
_MADE_BY_UV = (
    "a relocatable Python here, such as `uv python install` puts below the folder that "
    "`uv python dir` names"
)

Probe = Callable[[Desired, Observed], Check]


def passed(name: str, detail: str) -> Check:
    return Check(name, "passed", detail)


def failed(name: str, detail: str, hint: str) -> Check:
    return Check(name, "failed", detail, hint)


def preflight(desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """One row for each thing looked at."""
    probes: tuple[Probe, ...] = (
        platform, privileges, systemd, clock, packages, python, engine, disk, memory, port, owner,
        model,
    )  # fmt: skip
    rows = tuple(probe(desired, observed) for probe in probes)
    special = (probe.rows(desired, observed) for probe in (base, lock, gpus))
    return (*rows[:-1], *(row for found in special for row in found), rows[-1])


def platform(desired: Desired, observed: Observed) -> Check:
    architecture = observed.system.machine.architecture
    detail = f"{observed.system.os.pretty}, {architecture}"
    locked = desired.venv is not None and desired.venv.base is None
    if architecture not in {"x86_64", "amd64"} and locked:
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
        if not (settings.python_tree / "bin" / f"python{version}").is_file():
            detail = f"{settings.python_tree} has no bin/python{version}"
            return failed("python", detail, f"set python_tree to {_MADE_BY_UV}")
        return passed("python", f"carried from {settings.python_tree}")
    there = ", ".join(python.minor for python in observed.system.pythons) or "none"
    known = distribution_has_python(observed.system.os.id, observed.system.os.version_id, version)
    if known is False:
        hint = (
            f"{observed.system.os.pretty} does not package Python {version}: set python to an "
            f"interpreter on the host, or python_tree to {_MADE_BY_UV}"
        )
        return failed("python", f"{version} wanted, there: {there}", hint)
    return passed("python", f"{version} to install, there: {there}")


def engine(desired: Desired, observed: Observed) -> Check:
    missing = observed.deployment.engine_missing
    if missing is not None:
        hint = "correct engine.command, or set engine.lock so that it is installed"
        return failed("engine", f"{missing} is not there, or cannot be executed", hint)
    name = None if desired.venv is None else desired.venv.lock_name
    return passed("engine", name or desired.target.profile.engine.command[0])


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


def model(desired: Desired, observed: Observed) -> Check:
    spec, files = desired.target.profile.model, observed.deployment.model_files
    folder = desired.paths.model
    if spec.source is not None:
        return _source(desired)
    if spec.source_host is not None:
        return passed("model", f"from {spec.source_host}")
    if spec.fetch is not None:
        return passed("model", f"fetched by {spec.fetch[0].rpartition('/')[2]}")
    if not files:
        hint = f"put the model's files there, or set model.source to a folder here ({spec.name})"
        return failed("model", f"no files in {folder}", hint)
    manifest = host_manifest(desired, observed)
    lacking = [] if manifest is None else list(incomplete(manifest, files))
    lacking += [name for name in _required(spec) if not _matches(name, files)]
    if lacking:
        return failed("model", f"{folder} lacks {', '.join(lacking[:5])}", "complete the folder")
    closed, user = observed.deployment.model_unreadable, desired.target.profile.unit.user
    if closed is not None:
        hint = (
            f"`chmod -R o+rX {folder}`, with x for others on each folder above it, or move it out"
            " of a folder that is private"
        )
        return failed("model", f"user {user} cannot read {closed}", hint)
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
