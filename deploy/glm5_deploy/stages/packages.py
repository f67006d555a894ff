"""Which distribution packages bring what a host lacks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from glm5_deploy.hosts.command import Command, command, script

# Requirement to package, by package manager. {v} is Python's version.
_NAMES: dict[str, dict[str, str]] = {
    "apt-get": {
        "rsync": "rsync",
        "cc": "gcc",
        "libc-headers": "libc6-dev",
        "libnuma.so.1": "libnuma1",
        "libgomp.so.1": "libgomp1",
        "python": "python{v}",
        "python-headers": "python{v}-dev",
        "ca-certificates": "ca-certificates",
    },
    "dnf": {
        "rsync": "rsync",
        "cc": "gcc",
        "libc-headers": "glibc-devel",
        "libnuma.so.1": "numactl-libs",
        "libgomp.so.1": "libgomp",
        "python": "python{v}",
        "python-headers": "python{v}-devel",
        "ca-certificates": "ca-certificates",
    },
    "zypper": {
        "rsync": "rsync",
        "cc": "gcc",
        "libc-headers": "glibc-devel",
        "libnuma.so.1": "libnuma1",
        "libgomp.so.1": "libgomp1",
        "python": "python{d}",
        "python-headers": "python{d}-devel",
        "ca-certificates": "ca-certificates",
    },
}

# Pythons that a distribution has itself; others need a tree carried over or an interpreter named.
_PYTHONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("debian", "11"): ("3.9",),
    ("debian", "12"): ("3.11",),
    ("debian", "13"): ("3.13",),
    ("ubuntu", "22.04"): ("3.10", "3.11"),
    ("ubuntu", "24.04"): ("3.12",),
    ("ubuntu", "25.10"): ("3.13",),
    ("ubuntu", "26.04"): ("3.14",),
    ("rhel", "9"): ("3.9", "3.11", "3.12"),
    ("rocky", "9"): ("3.9", "3.11", "3.12"),
    ("almalinux", "9"): ("3.9", "3.11", "3.12"),
    ("rhel", "10"): ("3.12",),
    ("rocky", "10"): ("3.12",),
    ("almalinux", "10"): ("3.12",),
}

# A fresh container or cloud image may have no package lists, or old ones: refresh only when a first
# try fails.
_APT = (
    "export DEBIAN_FRONTEND=noninteractive LC_ALL=C; "
    'echo PROGRESS - installing "$@"; '
    "o='-qq -y --no-install-recommends -o DPkg::Lock::Timeout=300'; "
    'apt-get $o install "$@" >/dev/null || '
    '{ apt-get -qq update && apt-get $o install "$@" >/dev/null; }'
)


@dataclass(frozen=True)
class PackageManager:
    """How packages are named and installed on a host."""

    program: str

    def package(self, requirement: str, python: str) -> str:
        """The package that brings a requirement; an unknown one is its own name."""
        name = _NAMES[self.program].get(requirement, requirement)
        return name.format(v=python, d=python.replace(".", ""))

    def install(self, packages: tuple[str, ...]) -> Command:
        """The command that installs them, without questions."""
        if self.program == "apt-get":
            return script(_APT, *packages)
        if self.program == "dnf":
            return command("dnf", "install", "-y", "-q", *packages)
        return command("zypper", "--non-interactive", "install", "--no-recommends", *packages)

    def manual(self, packages: tuple[str, ...]) -> str:
        """What a person would type."""
        return f"{self.program} install {' '.join(packages)}"


def package_manager(tools: Container[str]) -> PackageManager | None:
    """The first one we know that the host has."""
    return next((PackageManager(name) for name in _NAMES if name in tools), None)


def distribution_has_python(os_id: str, version: str, python: str) -> bool | None:
    """Whether the distribution itself packages this Python; None where we do not know."""
    known = _PYTHONS.get((os_id, version)) or _PYTHONS.get((os_id, version.split(".")[0]))
    return None if known is None else python in known
