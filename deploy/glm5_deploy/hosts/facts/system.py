"""Facts about the machine as a whole: `system_fact_list`, gathered with others, then
`system_facts`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from glm5_deploy.config.numbers import natural
from glm5_deploy.hosts.command import command, script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput
from glm5_deploy.hosts.facts.gpu import GPU_FACT, GpuFacts
from glm5_deploy.hosts.facts.ports import PORT_FACT, Listener
from glm5_deploy.hosts.facts.python import Python, python_fact

SudoState = Literal["root", "nopasswd", "password", "refused", "missing"]
"""root: the login user is root. password: sudo works with the password given. refused: it does not
work.
"""

SHOW_MACHINE = r"""
echo "architecture=$(uname -m)"
echo "libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "user=${SUDO_USER:-$(id -un)}"
while read -r key value unit; do
  case $key in MemTotal:) echo "MemTotal=$value";; esac
done </proc/meminfo
echo "clock=$(date +%s.%N)"
"""

SHOW_SUDO = r"""
if [ "$(id -u)" = 0 ]; then
  if [ -z "$SUDO_USER" ] || [ "$SUDO_USER" = root ]; then echo root
  elif runuser -u "$SUDO_USER" -- sudo -n true >/dev/null 2>&1; then echo nopasswd
  else echo password
  fi
elif command -v sudo >/dev/null; then echo refused
else echo missing
fi
"""
"""Facts run by sudo where sudo works; so it was refused where they do not run as root."""

SHOW_SYSTEMD = r"""
command -v systemctl >/dev/null || exit 0
systemctl --version | head -n 1
systemctl is-system-running
exit 0
"""

FIND_TOOLS = r"""
for tool do
  path=$(command -v "$tool") && printf '%s %s\n' "$tool" "$path"
done
exit 0
"""

SHOW_DISKS = r"""
columns=avail,itotal,iavail,target
timeout 8 df --block-size=1 --output=$columns 2>/dev/null ||
  df --local --block-size=1 --output=$columns 2>/dev/null
echo '--- mounts'
cat /proc/self/mounts
exit 0
"""
"""A dead network mount hangs df: then the local ones alone."""

MOUNT_FLAGS = ("ro", "noexec")

TOOLS = ("cc", "gcc", "clang", "rsync", "apt-get", "dnf", "zypper")


@dataclass(frozen=True)
class Os:
    """The distribution, from os-release; empty texts where the file is missing.

    Args:
        id: ``debian``, ``ubuntu``, ``rhel``, …
    """

    id: str
    version_id: str
    pretty: str


@dataclass(frozen=True)
class Machine:
    """The machine and the login.

    Args:
        clock: the host's seconds since 1970 when it was asked.
        libc: glibc's version, or None (musl).
        user: who logs in.
        memory_total: bytes.
    """

    architecture: str
    libc: tuple[int, ...] | None
    user: str
    memory_total: int
    clock: float


@dataclass(frozen=True)
class Systemd:
    """systemd, where it runs.

    Args:
        version: 0 where there is none.
        state: of ``is-system-running``: running, degraded, offline, …
    """

    version: int
    state: str


@dataclass(frozen=True)
class Disk:
    """A mounted file system.

    Args:
        available: bytes.
        inodes, inodes_available: 0 where the file system has none (btrfs).
        flags: those of `MOUNT_FLAGS` that it is mounted with.
    """

    mount: PurePosixPath
    available: int
    inodes: int
    inodes_available: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SystemFacts:
    """Everything about the machine.

    Args:
        tools: program → path, those of `TOOLS` that are there.
        libraries: names that the loader knows, such as ``libnuma.so.1``.
    """

    os: Os
    machine: Machine
    sudo: SudoState
    systemd: Systemd
    pythons: tuple[Python, ...]
    tools: Mapping[str, PurePosixPath]
    libraries: frozenset[str]
    disks: tuple[Disk, ...]
    gpus: GpuFacts
    ports: tuple[Listener, ...]

    def disk_for(self, path: PurePosixPath) -> Disk | None:
        """The file system that a path is on, or will be on once it is made."""
        holding = [disk for disk in self.disks if path.is_relative_to(disk.mount)]
        return max(holding, key=lambda disk: len(disk.mount.parts), default=None)

    def listener(self, port: int) -> Listener | None:
        """Who holds a port."""
        return next((listener for listener in self.ports if listener.port == port), None)


def parse_os(output: FactOutput) -> Os:
    """Read /etc/os-release."""
    values = {}
    for line in output.stdout.splitlines():
        key, found, value = line.partition("=")
        if found and not line.startswith("#"):
            values[key] = _unquoted(value)
    return Os(
        values.get("ID", ""),
        values.get("VERSION_ID", ""),
        values.get("PRETTY_NAME", ""),
    )


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("\"'")


def parse_machine(output: FactOutput) -> Machine:
    """Read what `SHOW_MACHINE` prints."""
    values = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    libc = re.search(r"(\d+)\.(\d+)", values.get("libc", ""))
    clock = re.fullmatch(r"\d+(\.\d+)?", values.get("clock", ""))
    return Machine(
        architecture=values.get("architecture", ""),
        libc=(int(libc[1]), int(libc[2])) if libc else None,
        user=values.get("user", ""),
        memory_total=_count(values.get("MemTotal", "")) * 1024,
        clock=float(clock[0]) if clock else 0.0,
    )


def _count(text: str) -> int:
    return natural(text) or 0


def parse_sudo(output: FactOutput) -> SudoState:
    """Read what `SHOW_SUDO` prints."""
    said = output.stdout.strip()
    return next((state for state in get_args(SudoState) if state == said), "refused")


def parse_systemd(output: FactOutput) -> Systemd:
    """Read ``systemctl --version`` and ``is-system-running``."""
    found = re.match(r"systemd (\d+)", output.stdout)
    lines = output.stdout.splitlines()
    return Systemd(int(found[1]) if found else 0, lines[1].strip() if len(lines) > 1 else "")


def parse_tools(output: FactOutput) -> dict[str, PurePosixPath]:
    """Read what `FIND_TOOLS` prints."""
    pairs = (line.split(" ", 1) for line in output.stdout.splitlines() if " " in line)
    return {tool: PurePosixPath(path) for tool, path in pairs if path.startswith("/")}


def parse_libraries(output: FactOutput) -> frozenset[str]:
    """Read ``ldconfig -p``."""
    lines = output.stdout.splitlines()
    return frozenset(line.split()[0] for line in lines if " => " in line)


def parse_disks(output: FactOutput) -> tuple[Disk, ...]:
    """Read what `SHOW_DISKS` prints; df's last column, the mount point, may hold spaces."""
    table, _, mounts = output.stdout.partition("--- mounts\n")
    flags = dict(_mount_flags(line) for line in mounts.splitlines() if line.count(" ") >= 3)
    disks = []
    for line in table.splitlines()[1:]:
        words = line.split(None, 3)
        if len(words) == 4:
            free, inodes, inodes_free = (_count(word) for word in words[:3])
            mount = words[3].rstrip()
            found = Disk(PurePosixPath(mount), free, inodes, inodes_free, flags.get(mount, ()))
            disks.append(found)
    return tuple(disks)


def _mount_flags(line: str) -> tuple[str, tuple[str, ...]]:
    """A line of /proc/self/mounts, in which odd characters are written in octal."""
    _, mount, _, options = line.split(" ")[:4]
    name = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)
    return name, tuple(flag for flag in MOUNT_FLAGS if flag in options.split(","))


def system_fact_list(*pythons: PurePosixPath) -> list[Fact[Any]]:
    """The facts behind `SystemFacts`.

    Args:
        pythons: interpreters to look at beside those in the usual places.
    """
    return [
        Fact("os", script("cat /etc/os-release || cat /usr/lib/os-release"), parse_os),
        Fact("machine", script(SHOW_MACHINE), parse_machine),
        Fact("sudo", script(SHOW_SUDO), parse_sudo),
        Fact("systemd", script(SHOW_SYSTEMD), parse_systemd),
        python_fact(*pythons),
        Fact("tools", script(FIND_TOOLS, *TOOLS), parse_tools),
        Fact("libraries", command("ldconfig", "-p"), parse_libraries),
        Fact("disks", script(SHOW_DISKS), parse_disks),
        GPU_FACT,
        PORT_FACT,
    ]


def system_facts(values: Mapping[str, Any]) -> SystemFacts:
    """Put together what `gather` gave for `system_fact_list`, alone or among others."""
    names = ("os", "machine", "sudo", "systemd", "pythons", "tools", "libraries", "disks")
    return SystemFacts(
        **{name: values[name] for name in names}, gpus=values["gpus"], ports=values["ports"]
    )
