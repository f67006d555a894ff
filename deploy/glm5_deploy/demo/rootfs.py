"""Root file systems for throwaway hosts: this machine's own release, built once and cached."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from glm5_deploy.demo import machine
from glm5_deploy.errors import Glm5Error
from glm5_deploy.local_command import locked, run
from glm5_deploy.run.local import cache_folder

Variant = Literal["bare", "ready"]

BARE = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "sudo",
    "ca-certificates",
    "iproute2",
    "procps",
)
READY = (*BARE, "python3", "python3-dev", "gcc", "libc6-dev", "libnuma1", "rsync")
PACKAGES: dict[Variant, tuple[str, ...]] = {"bare": BARE, "ready": READY}

MASKED = (
    "console-getty.service",
    "getty.target",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "motd-news.timer",
    "systemd-udevd.service",
    "systemd-modules-load.service",
    "systemd-networkd-wait-online.service",
    "dev-hugepages.mount",
    "sys-fs-fuse-connections.mount",
)
"""Units of no use in a host that shares this kernel, or that start work of their own."""

PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ssh-keygen": "openssh-client",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
}


class BedUnavailableError(Glm5Error):
    """This machine cannot boot throwaway hosts as it is."""


def require_prerequisites() -> None:
    """Check for Linux, root and the programs, all at once.

    Raises:
        BedUnavailableError: with what is missing and the command that installs it.
    """
    if sys.platform != "linux":
        raise BedUnavailableError(
            "throwaway hosts need Linux: they are systemd-nspawn containers",
            "use a Debian or Ubuntu machine, or point an inventory at a host that you have",
        )
    missing = missing_packages()
    problems = [f"not installed: {', '.join(missing)}"] if missing else []
    if os.geteuid() != 0:
        problems.append("not root")
    if problems:
        install = f"sudo apt-get install -y {' '.join(missing)}" if missing else None
        rerun = "run the same command again with sudo" if os.geteuid() != 0 else None
        raise BedUnavailableError(
            f"this machine cannot boot throwaway hosts: {'; '.join(problems)}",
            "; then ".join(part for part in (install, rerun) if part),
        )


def missing_packages() -> list[str]:
    """Debian packages that this machine lacks for `Bed`."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)}
    )


def suite() -> str:
    """This machine's release, such as ``bookworm``.

    Raises:
        BedUnavailableError: it is neither Debian nor Ubuntu.
    """
    text = Path("/etc/os-release").read_text() if Path("/etc/os-release").is_file() else ""
    pairs = [line.partition("=")[::2] for line in text.splitlines()]
    values = {key: value.strip('"') for key, value in pairs}
    name = (
        values.get("UBUNTU_CODENAME")
        or values.get("DEBIAN_CODENAME")
        or values.get("VERSION_CODENAME")
    )
    family = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".split()
    if not name or not {"debian", "ubuntu"} & set(family):
        this = values.get("PRETTY_NAME", "neither")
        raise BedUnavailableError(
            f"throwaway hosts are built on Debian and Ubuntu; this is {this}",
            "point an inventory at a host that you have",
        )
    return name


def rootfs_folder(variant: Variant = "ready", cache: Path | None = None) -> Path:
    """Where `build_rootfs` puts it, or finds it.

    Raises:
        BedUnavailableError: see `suite`.
    """
    return (
        _given(variant)
        or (cache or cache_folder()) / f"rootfs-{suite()}-{variant}-{_digest(variant)}"
    )


def build_rootfs(variant: Variant = "ready", cache: Path | None = None) -> Path:
    """The cached root file system, built on the first call (one to two minutes, 250 to 450 MB).

    ``$GLM5_BED_ROOTFS`` names a ready one that is there already.

    Raises:
        BedUnavailableError: see `require_prerequisites`.
        LocalCommandError: mmdebstrap failed, with what it said.
    """
    folder = rootfs_folder(variant, cache)
    if folder.is_dir() or _given(variant):
        return folder
    require_prerequisites()
    release = suite()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            if partial.exists():
                shutil.rmtree(partial)
            _bootstrap(partial, release, PACKAGES[variant])
            partial.rename(folder)
    return folder


def _given(variant: Variant) -> Path | None:
    named = os.environ.get("GLM5_BED_ROOTFS")
    return Path(named) if named and variant == "ready" else None


def _digest(variant: Variant) -> str:
    text = "\n".join((*PACKAGES[variant], *MASKED))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _bootstrap(root: Path, release: str, packages: tuple[str, ...]) -> None:
    sources = machine.apt_sources(release)
    run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *(f"--aptopt={file}" for file in machine.apt_options()),
            release,
            root,
            *(["-"] if sources else []),
        ],
        input="".join(f"{line}\n" for line in sources).encode(),
        env={"LC_ALL": "C"},
    )
    for unit in MASKED:
        place = root / "etc/systemd/system" / unit
        place.unlink(missing_ok=True)
        place.symlink_to("/dev/null")
    for leftover in ("etc/machine-id", "etc/hostname"):
        (root / leftover).unlink(missing_ok=True)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    (root / "root/.ssh").mkdir(mode=0o700, parents=True, exist_ok=True)
