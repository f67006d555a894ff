"""What a host has of ours, read in one round trip together with the facts of the system."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

from glm5_deploy.config.models import Target
from glm5_deploy.config.numbers import natural
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.base import BaseFacts, base_fact
from glm5_deploy.hosts.facts.fact import Fact, FactOutput
from glm5_deploy.hosts.facts.gpu_host import GpuHost, gpu_host, gpu_host_fact_list
from glm5_deploy.hosts.facts.system import SystemFacts, system_fact_list, system_facts
from glm5_deploy.hosts.facts.unit import UnitFacts, unit_fact
from glm5_deploy.hosts.host import Host

PROGRAMS = (
    "agent.py", "verify.py", "deliver.py", "bench.py", "rehearse.py", "build_venv.sh",
    "layer_venv.py", "install_wheel.sh",
)  # fmt: skip
UNIT_FOLDER = PurePosixPath("/etc/systemd/system")

_LINK = 'readlink -- "$1" || :'
_READ = 'if [ -e "$1" ]; then cat -- "$1"; else exit 3; fi'
_FILES = 'for f in "$@"; do if [ -e "$f" ]; then base64 -w0 -- "$f"; echo; else echo -; fi; done'
# One that lost a part since it was finished counts as absent, and is made again.
_RELEASES = """
for r in "$1"/releases/*/; do
  [ -e "$r/.done" ] && [ -s "$r/unit" ] && [ -s "$r/environment" ] && [ -e "$r/secrets" ] &&
    [ -s "$r/profile.json" ] && basename "$r"
done; :
"""
_VENVS = """
for v in "$1"/venvs/*/; do [ -e "$v/.done" ] && [ -x "$v/bin/python" ] && basename "$v"; done; :
"""
_TREE = (
    'if [ -d "$1" ]; then cd -- "$1" && '
    "find -L . -type f ! -path '*/.*/*' ! -name '.*' -printf '%s %T@ %C@ %i %P\\n'; else exit 3; fi"
)
_ABSENT = """
for package do
  if command -v dpkg-query >/dev/null; then
    state=$(dpkg-query -W -f '${db:Status-Status}' -- "$package" 2>/dev/null)
    [ "$state" != installed ] || continue
  elif command -v rpm >/dev/null; then
    rpm -q --quiet -- "$package" && continue
  fi
  printf '%s\\n' "$package"
done
"""
# A user that is not there yet will be in no group either.
_UNREADABLE = """
[ "$(id -u)" = 0 ] && [ -d "$1" ] || exit 0
user=$2; id -- "$user" >/dev/null 2>&1 || user=nobody
cd / && runuser -u "$user" -- test -r "$1" -a -x "$1" || { printf '%s\\n' "$1"; exit 0; }
runuser -u "$user" -- find -L "$1" ! -readable -print -quit 2>/dev/null
"""
_PROGRAM = '[ -z "$1" ] || [ -x "$1" ] || printf "%s\\n" "$1"'
_USER = 'getent passwd -- "$1" >/dev/null && id -gn -- "$1" >/dev/null 2>&1 && echo yes || :'
_INCUMBENT = """
name=$(sed -n 's/^SyslogIdentifier=//p' "$1/unit" 2>/dev/null | head -n 1)
[ -n "$name" ] && [ "$name.service" != "$2" ] || exit 0
echo "Unit=$name.service"; systemctl show -p ActiveState,MainPID -- "$name.service"
"""
_FOLDERS = 'for f in "$@"; do [ -d "$f" ] && stat -c "%a %U %n" -- "$f"; done; :'


@dataclass(frozen=True)
class FileState:
    """What a look at a file shows without reading it; times are in nanoseconds."""

    size: int
    mtime: int
    ctime: int
    inode: int


@dataclass(frozen=True)
class Incumbent:
    """The service of the current release where the profile now names another one."""

    unit: str
    running: bool
    main_pid: int


@dataclass(frozen=True)
class DeploymentFacts:
    """What of ours is on a host.

    Args:
        files: contents of files that a plan compares, by path; None where there is no such file.
        model_files: relative name to state; None where the folder does not exist.
        model_stamp: the last full verification (see onhost/verify.py), or None.
        absent_packages: those of the profile's own list that are not installed.
        model_unreadable: a file or folder of the model that the service's user may not read.
        engine_missing: the engine's program, where it should be on the host already and is not.
    """

    current: str | None = None
    previous: str | None = None
    releases: tuple[str, ...] = ()
    venvs: tuple[str, ...] = ()
    pending: dict[str, Any] | None = None
    reverted: dict[str, Any] | None = None
    files: dict[str, str | None] | None = None
    model_files: dict[str, FileState] | None = None
    model_manifest: str | None = None
    model_stamp: dict[str, Any] | None = None
    user_exists: bool = False
    absent_packages: tuple[str, ...] = ()
    model_unreadable: str | None = None
    engine_missing: str | None = None
    incumbent: Incumbent | None = None
    folders: dict[str, tuple[str, str]] | None = None

    def file(self, path: PurePosixPath) -> str | None:
        return (self.files or {}).get(str(path))


@dataclass(frozen=True)
class Observed:
    """All facts of one host.

    Args:
        gpu_host: what lies around its GPUs; None where the profile wants none.
        base: what the interpreter of `engine.base` says; None where the profile names none.
    """

    system: SystemFacts
    deployment: DeploymentFacts
    unit: UnitFacts
    timer: UnitFacts
    gpu_host: GpuHost | None = None
    base: BaseFacts | None = None


@dataclass(frozen=True)
class Paths:
    """Where things of ours are on a host; every other module asks here."""

    root: PurePosixPath
    unit: str
    model: PurePosixPath
    model_name: str

    @classmethod
    def of(cls, target: Target) -> Paths:
        profile = target.profile
        return cls(target.root, profile.unit_name, target.model_folder, profile.model.name)

    def python(self, version: str) -> PurePosixPath:
        """An interpreter that we carried there; `version` is such as ``3.12``."""
        return self.root / "python" / version / "bin" / f"python{version}"

    @property
    def state(self) -> PurePosixPath:
        return self.root / "state"

    @property
    def library(self) -> PurePosixPath:
        """Programs of ours that run on the host."""
        return self.root / "lib"

    @property
    def cache(self) -> PurePosixPath:
        return self.root / "cache"

    @property
    def uploads(self) -> PurePosixPath:
        """What rsync writes, as the login user: wheels, uv, a Python."""
        return self.root / "cache" / "uploads"

    @property
    def stamp(self) -> PurePosixPath:
        return self.state / f"verified-{self.model_name}.json"

    @property
    def manifest(self) -> PurePosixPath:
        """Beside the files where they are ours, else in our state: foreign folders are never
        written.
        """
        ours = self.model == self.root / "models" / self.model_name
        return self.model / "MANIFEST.sha256" if ours else self.state / f"{self.model_name}.sha256"

    @property
    def current(self) -> PurePosixPath:
        return self.root / "current"

    def release(self, identifier: str) -> PurePosixPath:
        return self.root / "releases" / identifier

    def venv(self, identifier: str) -> PurePosixPath:
        return self.root / "venvs" / identifier

    @property
    def unit_file(self) -> PurePosixPath:
        return UNIT_FOLDER / self.unit

    @property
    def confirm_service(self) -> str:
        return self.unit.replace(".service", "-confirm.service")

    @property
    def confirm_timer(self) -> str:
        return self.unit.replace(".service", "-confirm.timer")

    @property
    def agent(self) -> PurePosixPath:
        return self.library / "agent.py"

    @property
    def folders(self) -> tuple[PurePosixPath, ...]:
        names = ("lib", "state", "releases", "venvs", "cache", "cache/uploads", "models")
        return (self.root, *(self.root / name for name in names))

    def compared(self) -> tuple[PurePosixPath, ...]:
        """Files whose contents a plan compares."""
        return (
            self.unit_file,
            UNIT_FOLDER / self.confirm_service,
            UNIT_FOLDER / self.confirm_timer,
            *(self.library / name for name in PROGRAMS),
            self.current / "unit",
            self.current / "environment",
        )


def _text(output: FactOutput) -> str | None:
    return output.stdout.strip() or None if output.returncode == 0 else None


def _content(output: FactOutput) -> str | None:
    return output.stdout if output.returncode == 0 else None


def parse_files(paths: Sequence[PurePosixPath], output: FactOutput) -> dict[str, str | None]:
    """One line for each path: its content in base64, or ``-`` where there is no such file."""
    lines = output.stdout.splitlines()
    return {
        str(path): None if line == "-" else base64.b64decode(line).decode(errors="replace")
        for path, line in zip_longest(paths, lines, fillvalue="-")
    }


def _names(output: FactOutput) -> tuple[str, ...]:
    return tuple(sorted(output.stdout.split()))


def _lines(output: FactOutput) -> tuple[str, ...]:
    return tuple(output.stdout.split())


def _document(output: FactOutput) -> dict[str, Any] | None:
    if output.returncode != 0:
        return None
    try:
        document = json.loads(output.stdout)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _link_name(output: FactOutput) -> str | None:
    text = _text(output)
    return None if text is None else PurePosixPath(text).name


def _nanoseconds(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(f"{fraction:0<9}"[:9])


def parse_tree(output: FactOutput) -> dict[str, FileState] | None:
    """Lines of ``size mtime ctime inode name``; None where there is no folder."""
    if output.returncode != 0:
        return None
    files: dict[str, FileState] = {}
    for line in output.stdout.split("\n"):
        fields = line.split(" ", 4)
        # A name with a line break is no model's file: its pieces are passed over.
        if len(fields) < 5:
            continue
        size, inode = natural(fields[0]), natural(fields[3])
        if size is not None and inode is not None:
            mtime, ctime = map(_nanoseconds, fields[1:3])
            files[fields[4]] = FileState(size, mtime, ctime, inode)
    return files


def parse_incumbent(output: FactOutput) -> Incumbent | None:
    """Lines of ``NAME=value``; None where the current release is the profile's own service."""
    values = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    if "Unit" not in values:
        return None
    running = values.get("ActiveState", "") not in {"", "inactive", "failed"}
    return Incumbent(values["Unit"], running, natural(values.get("MainPID", "")) or 0)


def _folders(output: FactOutput) -> dict[str, tuple[str, str]]:
    rows = (line.split(" ", 2) for line in output.stdout.splitlines())
    return {path: (mode, owner) for mode, owner, path in rows}


def _own_program(target: Target) -> str:
    """The engine's program, where the host brings it itself; else nothing."""
    program = target.profile.engine.command[0]
    return "" if "{" in program else program


def deployment_fact_list(target: Target) -> list[Fact[Any]]:
    """The facts of one target, each a command and a pure parser."""
    paths = Paths.of(target)
    compared = paths.compared()

    def read(name: str, path: PurePosixPath, parse: Callable[[FactOutput], Any]) -> Fact[Any]:
        return Fact(name, script(_READ, path), parse)

    return [
        Fact("current", script(_LINK, paths.current), _link_name),
        Fact("previous", script(_LINK, paths.root / "previous"), _link_name),
        Fact("releases", script(_RELEASES, paths.root), _names),
        Fact("venvs", script(_VENVS, paths.root), _names),
        read("pending", paths.state / "pending.json", _document),
        read("reverted", paths.state / "reverted.json", _document),
        Fact("model_files", script(_TREE, paths.model), parse_tree),
        read("model_manifest", paths.manifest, _content),
        read("model_stamp", paths.stamp, _document),
        Fact(
            "user_exists", script(_USER, target.profile.unit.user), lambda o: bool(o.stdout.strip())
        ),
        Fact("model_unreadable", script(_UNREADABLE, paths.model, target.profile.unit.user), _text),
        Fact("engine_missing", script(_PROGRAM, _own_program(target)), _text),
        Fact("absent_packages", script(_ABSENT, *target.profile.needs.packages), _lines),
        Fact("incumbent", script(_INCUMBENT, paths.current, paths.unit), parse_incumbent),
        Fact("folders", script(_FOLDERS, *paths.folders), _folders),
        Fact("files", script(_FILES, *compared), lambda o: parse_files(compared, o)),
    ]


def deployment_facts(values: dict[str, Any]) -> DeploymentFacts:
    """Collect what `deployment_fact_list` found."""
    names = DeploymentFacts.__dataclass_fields__
    return DeploymentFacts(**{name: value for name, value in values.items() if name in names})


def observe(host: Host, target: Target) -> Observed:
    """Everything a plan needs to know, in one round trip."""
    from glm5_deploy.hosts.facts.fact import gather

    paths = Paths.of(target)
    unit, timer = unit_fact(paths.unit), unit_fact(paths.confirm_timer)
    named = [target.settings.python] if target.settings.python is not None else []
    named.append(paths.python(target.profile.engine.python))
    on_gpus = target.profile.gpus.count > 0
    facts = [*system_fact_list(*named), *deployment_fact_list(target), unit, timer]
    facts += gpu_host_fact_list(target.profile.unit.user) if on_gpus else []
    base = target.profile.engine.base
    facts += [base_fact(base.python, base.site)] if base is not None else []
    values = gather(host, facts)
    return Observed(
        system_facts(values),
        deployment_facts(values),
        values[unit.name],
        values[timer.name],
        gpu_host(values) if on_gpus else None,
        values.get("base"),
    )
