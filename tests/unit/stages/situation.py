"""Desired and observed states for tests of plans, made from small dictionaries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.facts.fact import FactOutput
from glm5_deploy.hosts.facts.gpu import Gpu, GpuFacts
from glm5_deploy.hosts.facts.ports import Listener
from glm5_deploy.hosts.facts.python import Python
from glm5_deploy.hosts.facts.system import Disk, Machine, Os, Systemd, SystemFacts
from glm5_deploy.hosts.facts.unit import UnitFacts, parse_unit
from glm5_deploy.onhost import program
from glm5_deploy.stages.change import Change, Examine, Put, Rsync, Run
from glm5_deploy.stages.desired import Desired, build_desired
from glm5_deploy.stages.manifest import Manifest
from glm5_deploy.stages.observed import (
    PROGRAMS,
    UNIT_FOLDER,
    DeploymentFacts,
    FileState,
    Observed,
)
from glm5_deploy.stages.plan import plan

NOW = 1_800_000_000.0
MANIFEST = Manifest({"config.json": "a" * 64, "w.gguf": "b" * 64}, {"config.json": 2, "w.gguf": 9})
FILES = {
    "config.json": FileState(2, 10, 20, 1),
    "w.gguf": FileState(9, 11, 21, 2),
}
PROFILE: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "tiny", "source": "/here/model"},
    "engine": {"python": "3.11"},
    "secrets": {"VLLM_API_KEY": "${env:KEY}"},
}
TOOLS = ("rsync", "gcc", "apt-get", "systemd-run")


def desired(
    lock: Path | None = None,
    settings: dict[str, Any] | None = None,
    **more: Any,  # noqa: ANN401
) -> Desired:
    """What `PROFILE` with ``more`` on top asks for."""
    document = {**PROFILE, **more}
    engine = dict(document["engine"])
    if lock is not None:
        engine["lock"] = str(lock)
    else:
        engine.setdefault("command", ["{python}", "/srv/serve.py", "{model}"])
    profile = Profile.model_validate({**document, "engine": engine})
    target = Target(
        name="bw1", settings=HostSettings.model_validate(settings or {}), profile=profile
    )
    return build_desired(
        target,
        resolve_secret=lambda _: Secret("s3cret"),
        kernel_wheel=lambda: Path(__file__),
        manifest=lambda _: MANIFEST,
        operator="ann@desk",
    )


def unit(**values: str) -> UnitFacts:
    """A unit's state from systemd's own property names."""
    text = "\n".join(f"{name}={value}" for name, value in values.items())
    return parse_unit(FactOutput(0, text, ""))


def system(**more: Any) -> SystemFacts:  # noqa: ANN401
    """A Debian 12 machine that lacks nothing."""
    machine = Machine("x86_64", (2, 36), "root", 64 << 30, NOW)
    python = PurePosixPath("/usr/bin/python3.11")
    facts = SystemFacts(
        os=Os("debian", "12", "Debian GNU/Linux 12"),
        machine=machine,
        sudo="root",
        systemd=Systemd(252, "running"),
        pythons=(Python(python, (3, 11, 2), True),),
        tools={name: PurePosixPath("/usr/bin") / name for name in TOOLS},
        libraries=frozenset({"libnuma.so.1"}),
        disks=(Disk(PurePosixPath("/"), 1 << 39, 1 << 26, 1 << 25),),
        gpus=GpuFacts(),
        ports=(),
    )
    return replace(facts, **more)


def bare() -> Observed:
    """A host that nothing was ever done to."""
    gone = unit(LoadState="not-found", ActiveState="inactive")
    return Observed(system(), DeploymentFacts(files={}), gone, gone)


def complete(wanted: Desired) -> Observed:
    """A host that is just as wanted, serving."""
    from glm5_deploy.stages.service import guard_files

    paths, release = wanted.paths, wanted.release
    observed = bare()
    files: dict[str, str | None] = {
        str(paths.library / name): program(name).decode() for name in PROGRAMS
    }
    files[str(paths.unit_file)] = release.text("unit")
    files[str(paths.current / "unit")] = release.text("unit")
    files[str(paths.current / "environment")] = release.text("environment")
    guard = guard_files(wanted, observed)
    files |= {str(UNIT_FOLDER / name): text for name, text in guard.items()}
    stamp = {
        "manifest": MANIFEST.key(),
        "files": {n: [s.size, s.mtime, s.ctime, s.inode] for n, s in FILES.items()},
    }
    deployed = DeploymentFacts(
        current=release.identifier,
        releases=(release.identifier,),
        venvs=() if wanted.venv is None else (wanted.venv.identifier,),
        files=files,
        model_files=dict(FILES),
        model_manifest=MANIFEST.text(),
        model_stamp=stamp,
        user_exists=True,
        folders={str(path): ("755", "root") for path in paths.folders},
    )
    serving = unit(LoadState="loaded", ActiveState="active", UnitFileState="enabled", MainPID="77")
    timer = unit(LoadState="loaded", ActiveState="inactive", UnitFileState="enabled")
    return Observed(system(), deployed, serving, timer)


def changed(observed: Observed, **more: Any) -> Observed:  # noqa: ANN401
    """Observed with other deployment facts."""
    return replace(observed, deployment=replace(observed.deployment, **more))


def planned(wanted: Desired, observed: Observed) -> list[str]:
    """The plan as ``stage action target`` lines."""
    return [f"{c.stage} {c.action} {c.target}" for c in plan(wanted, observed)]


def written(changes: list[Change]) -> str:
    """A plan with every step, for comparison with a text; scripts are cut short."""
    lines = []
    for change in changes:
        detail = f" ({change.detail})" if change.detail else ""
        stops = " [stops the server]" if change.downtime else ""
        lines.append(f"{change.stage}: {change.action} {change.target}{detail}{stops}")
        lines += [f"    {_step(step)}" for step in change.steps]
    return "\n".join(lines) + "\n"


def _step(step: object) -> str:
    match step:
        case Run(command, _, stdin):
            said = "" if stdin is None else f" <<< {stdin.decode()}"
            return f"run {command.masked(110)}{said}"
        case Put(path, content, mode):
            size = "secret" if isinstance(content, Secret) else "text"
            return f"put {path} {mode:o} {size}"
        case Rsync(source, target, include, checksum, _):
            how = " by content" if checksum else ""
            return f"rsync {source.name} -> {target}{how} {' '.join(include)}".rstrip()
        case Examine(command, limit):
            words = command.argv
            return f"examine within {limit} s: {' '.join(words[words.index('--') + 1 :])}"
    return f"job {step.unit}: {step.command.masked(140)}"  # type: ignore[attr-defined]


def gpus(count: int, **more: Any) -> GpuFacts:  # noqa: ANN401
    """Some RTX PRO 6000."""
    one = Gpu(0, "NVIDIA RTX PRO 6000", "GPU-0", 96 << 30, 0, (12, 0), False, 0, "0")
    found = tuple(replace(one, index=index, **more) for index in range(count))
    return GpuFacts(found, "580.95", "13.0")


__all__ = ["Listener", "bare", "changed", "complete", "desired", "planned", "system", "unit"]
