"""What the machine itself lacks: packages, the service's user, our folders, uv, a Python, our
programs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from glm5_deploy.config.models import Profile
from glm5_deploy.hosts.command import script
from glm5_deploy.onhost import program
from glm5_deploy.stages.change import Change, Put, Rsync, Run, Transient
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import PROGRAMS, Observed
from glm5_deploy.stages.packages import (
    PackageManager,
    distribution_has_python,
    package_manager,
)

STAGE = "system"

# A group of that name may be left of a user that was removed by hand, and a user without one of a
# useradd that was ended halfway: it writes /etc/passwd first.
_ADD_USER = """
if number=$(id -g -- "$1" 2>/dev/null); then
  if getent group -- "$1" >/dev/null; then exec usermod --gid "$1" -- "$1"; fi
  exec groupadd --system --gid "$number" -- "$1"
fi
set -- --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin "$1"
for user; do :; done
if getent group -- "$user" >/dev/null; then exec useradd --system --gid "$user" "$@"; fi
exec useradd --system --user-group "$@"
"""
# Another operator may have copied before us, under another login: rsync needs to write in folders.
_MAKE = """
owner=$1; shift
install -d -m 755 -o "$owner" -- "$@" || exit
[ "$owner" = root ] || find "$@" -type d ! -user "$owner" -exec chown -- "$owner" {} +
"""
# Half a Python would be taken for a whole one later, and one that looks for its library where it
# was built does not run here.
_PLACE_PYTHON = """
new=$2.new; rm -rf "$new"; install -d -m 755 "${2%/*}"
cp -a --no-preserve=ownership -T "$1" "$new" || exit
"$new/$3" -I -c 'import ctypes, ssl, venv' || {
  echo "it does not run on this host: is the folder relocatable?" >&2; rm -rf "$new"; exit 1
}
rm -rf "$2" && mv -T "$new" "$2"
"""
OLDEST_PYTHON = (3, 8, 0)
"""What our own programs on the host run on."""


@dataclass(frozen=True)
class Requirement:
    """Something the host lacks, by the name that the package table uses, and why it is needed."""

    name: str
    reason: str


def version_matters(profile: Profile) -> bool:
    """Whether the engine runs on the Python that we choose; any will do for our programs."""
    names_it = any("{python}" in word for word in profile.engine.command)
    return profile.engine.lock is not None or names_it


def usable_python(desired: Desired, observed: Observed) -> PurePosixPath | None:
    """The host's interpreter of the profile's version, with headers where a compiler is needed."""
    profile = desired.target.profile
    if profile.engine.base is not None:
        return profile.engine.base.python
    for python in observed.system.pythons:
        if not version_matters(profile) and python.version >= OLDEST_PYTHON:
            return python.path
        if python.minor != profile.engine.python:
            continue
        if python.headers or not profile.needs.compiler or desired.target.settings.python:
            return python.path
    return None


def python_path(desired: Desired, observed: Observed) -> PurePosixPath:
    """The interpreter that this host has, or will have once the plan is applied."""
    settings, version = desired.target.settings, desired.target.profile.engine.python
    if settings.python is not None and desired.target.profile.engine.base is None:
        return settings.python
    found = usable_python(desired, observed)
    if found is not None:
        return found
    if settings.python_tree is not None:
        return desired.paths.python(version)
    return PurePosixPath(f"/usr/bin/python{version}")


def lacking(desired: Desired, observed: Observed) -> tuple[Requirement, ...]:
    """What packages would have to bring, in a stable order."""
    needs, system = desired.target.profile.needs, observed.system
    found: list[Requirement] = []
    if "rsync" not in system.tools:
        found.append(Requirement("rsync", "files are copied with rsync"))
    if needs.compiler and not system.tools.keys() & {"cc", "gcc", "clang"}:
        found.append(Requirement("cc", "Triton and torch.compile build code at run time"))
        found.append(Requirement("libc-headers", "the compiler needs the C library's headers"))
    for library in needs.libraries:
        if library not in system.libraries:
            found.append(Requirement(library, "the engine loads it"))
    if not desired.target.settings.python and usable_python(desired, observed) is None:
        found += _python_requirements(desired, observed)
    return tuple(found)


def _python_requirements(desired: Desired, observed: Observed) -> list[Requirement]:
    if desired.target.settings.python_tree is not None:
        return []
    profile, system = desired.target.profile, observed.system
    version = profile.engine.python
    if distribution_has_python(system.os.id, system.os.version_id, version) is False:
        return []
    present = any(python.minor == version for python in system.pythons)
    wanted = [] if present else [Requirement("python", f"the lock is for Python {version}")]
    if profile.needs.compiler:
        wanted.append(Requirement("python-headers", "Triton compiles against Python's headers"))
    return wanted


def missing_packages(
    desired: Desired, observed: Observed, manager: PackageManager
) -> tuple[str, ...]:
    """Package names for what is lacking, with the profile's own list."""
    python = desired.target.profile.engine.python
    names = [manager.package(need.name, python) for need in lacking(desired, observed)]
    return tuple(dict.fromkeys([*names, *observed.deployment.absent_packages]))


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Packages first, since what follows may need them."""
    return [
        *_packages(desired, observed),
        *_user(desired, observed),
        *folders(desired, observed),
        *programs(desired, observed),
        *_python_tree(desired, observed),
    ]


def _packages(desired: Desired, observed: Observed) -> list[Change]:
    manager = package_manager(observed.system.tools)
    if manager is None:
        return []
    packages = missing_packages(desired, observed, manager)
    if not packages:
        return []
    mark = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    step = Transient(f"glm5-job-packages-{mark}", manager.install(packages), limit=1800)
    return [Change(STAGE, "install", " ".join(packages), f"with {manager.program}", (step,))]


def _user(desired: Desired, observed: Observed) -> list[Change]:
    if observed.deployment.user_exists:
        return []
    user = desired.target.profile.unit.user
    return [
        Change(
            STAGE,
            "create",
            f"user {user}",
            "the service runs as it",
            (Run(script(_ADD_USER, user)),),
        )
    ]


def folders(desired: Desired, observed: Observed) -> list[Change]:
    """Ours, where they are missing or belong to somebody else."""
    login = observed.system.machine.user
    present = observed.deployment.folders or {}
    wanted = dict.fromkeys(desired.paths.folders, "root")
    for path in (desired.paths.uploads, desired.paths.root / "models"):
        wanted[path] = login
    wrong = {p: o for p, o in wanted.items() if present.get(str(p)) != ("755", o)}
    if not wrong:
        return []
    owners = {owner: [p for p in wrong if wrong[p] == owner] for owner in wrong.values()}
    steps = tuple(Run(script(_MAKE, owner, *paths)) for owner, paths in owners.items())
    return [Change(STAGE, "create", str(desired.paths.root), f"{len(wrong)} folders", steps)]


def programs(desired: Desired, observed: Observed) -> list[Change]:
    """What runs on the host for us, where it is not there as it is here."""
    library = desired.paths.library
    steps = tuple(
        Put(library / name, program(name), mode=0o755)
        for name in PROGRAMS
        if observed.deployment.file(library / name) != program(name).decode()
    )
    return [Change(STAGE, "write", f"{library}/*", "our programs", steps)] if steps else []


def _python_tree(desired: Desired, observed: Observed) -> list[Change]:
    tree = desired.target.settings.python_tree
    if tree is None or usable_python(desired, observed) is not None:
        return []
    version = desired.target.profile.engine.python
    upload = desired.paths.uploads / f"python-{version}"
    target = desired.paths.python(version).parent.parent
    steps = (
        Rsync(Path(tree), upload),
        Run(script(_PLACE_PYTHON, upload, target, f"bin/python{version}"), timeout=600),
    )
    return [Change(STAGE, "sync", str(target), f"Python from {tree}", steps)]
