"""Throwaway hosts on this machine: systemd as process 1, journald, sshd, sudo.

Every host is an overlay over one cached root file system, run by systemd-nspawn, with a network
namespace and a cgroup of its own. A bed outlives the process that booted it; another process finds
it by its folder, and `Bed.up` first removes what a killed run left there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glm5_deploy.demo import machine, network
from glm5_deploy.demo.rootfs import Variant, build_rootfs, require_prerequisites
from glm5_deploy.errors import Glm5Error
from glm5_deploy.local_command import run

BOOT_LIMIT = 120.0
STOP_LIMIT = 20.0
REBOOTED = 133
CGROUPS = Path("/sys/fs/cgroup")
PATH_INSIDE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# nspawn with --keep-unit ends with status 133 where the host asked for a reboot. The loop stays
# outside the host's own cgroup: version 2 allows no processes beside child groups that have
# controllers.
SUPERVISOR = f"""
running=$1 log=$2 groups=$3
shift 3
while [ -e "$running" ]; do
    sh -c 'for group in $1; do echo $$ > "$group/cgroup.procs" || exit 1; done; shift; exec "$@"' \\
        host "$groups" "$@" < /dev/null >> "$log" 2>&1
    status=$?
    [ "$status" = {REBOOTED} ] || rm -f "$running"
done
"""


class BedError(Glm5Error):
    """A throwaway host did not boot, stop or do what it was asked."""


@dataclass(frozen=True)
class BedHost:
    """One host of a bed. Its methods work beside SSH, also while the network is cut."""

    name: str
    index: int
    bed: Bed

    @property
    def address(self) -> str:
        return self.bed.network.address(self.index)

    @property
    def folder(self) -> Path:
        return self.bed.folder / "hosts" / self.name

    @property
    def root(self) -> Path:
        """Its root folder as seen from here, without what is mounted inside (``/run``)."""
        return self.folder / "root"

    def exec(
        self,
        argv: Sequence[str | Path],
        *,
        input: bytes | str | None = None,
        check: bool = True,
        timeout: float | None = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run as root inside, not over SSH.

        Raises:
            BedError: the host is not running, or (with ``check``) a status other than 0.
        """
        leader = self._leader()
        if leader is None:
            raise BedError(f"{self.name} is not running", self._console())
        enter = ["nsenter", "--target", str(leader), "--all", "--", "env", "-i"]
        environment = [f"PATH={PATH_INSIDE}", "HOME=/root", "LANG=C.UTF-8"]
        done = subprocess.run(
            [*enter, *environment, *(str(word) for word in argv)],
            input=input.decode() if isinstance(input, bytes) else (input or ""),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-2000:]
            raise BedError(f"{self.name}: {argv[0]}: status {done.returncode}: {said}")
        return done

    def running(self) -> bool:
        return self._leader() is not None

    def cut(self) -> None:
        """Take its network away."""
        run(["ip", "link", "set", self.bed.network.interface(self.index), "down"])

    def restore(self) -> None:
        """Give its network back."""
        run(["ip", "link", "set", self.bed.network.interface(self.index), "up"])

    def reboot(self) -> None:
        """Reboot it as an administrator would, and wait until it is up again."""
        before = self._leader()
        self.exec(["systemctl", "reboot"], check=False)
        deadline = time.monotonic() + BOOT_LIMIT
        while self._leader() in (before, None):
            self._check_alive(deadline)
            time.sleep(0.05)
        self.wait()

    def wait(self) -> None:
        """Wait until systemd has finished booting and sshd answers.

        Raises:
            BedError: with the end of its console, or the units that failed.
        """
        deadline = time.monotonic() + BOOT_LIMIT
        while not (self._booted() and self._ssh_answers()):
            self._check_alive(deadline)
            time.sleep(0.05)

    def add_user(
        self,
        name: str,
        sudo: Literal["nopasswd", "password"] | None = "nopasswd",
        password: str | None = None,
    ) -> None:
        """Make a user whom the bed's key lets in; one of that name is replaced.

        Args:
            sudo: without a password, with one, or None: not allowed at all.
            password: for sudo; any text without a newline.
        """
        self.remove_user(name)
        self.exec(["useradd", "--create-home", "--shell", "/bin/bash", name])
        home = f"/home/{name}"
        self.exec(["install", "-d", "-m", "700", "-o", name, "-g", name, f"{home}/.ssh"])
        keys = f"{home}/.ssh/authorized_keys"
        self.exec(["tee", keys], input=self.bed.key.with_suffix(".pub").read_text())
        self.exec(["chown", f"{name}:{name}", keys])
        if password is not None:
            self.exec(["chpasswd"], input=f"{name}:{password}\n")
        if sudo:
            rule = f"{name} ALL=(ALL:ALL) {'NOPASSWD: ' if sudo == 'nopasswd' else ''}ALL\n"
            self.exec(["tee", f"/etc/sudoers.d/{name}"], input=rule)
            self.exec(["chmod", "440", f"/etc/sudoers.d/{name}"])

    def remove_user(self, name: str) -> None:
        """Take a user away with home, sudo rule and sessions; none of that name is fine."""
        self.exec(["rm", "-f", f"/etc/sudoers.d/{name}"])
        known = self.exec(["id", "--user", name], check=False)
        if known.returncode:
            return
        # Killed, the user's own systemd would stay behind as a failed unit.
        manager = f"user@{known.stdout.strip()}.service"
        self.exec(["systemctl", "stop", manager], check=False)
        self.exec(["pkill", "-KILL", "-u", name], check=False)
        self.exec(["systemctl", "reset-failed", manager], check=False)
        self.exec(["userdel", "--force", "--remove", name], check=False)
        if self.exec(["id", name], check=False).returncode == 0:
            raise BedError(f"{self.name}: the user {name} could not be removed")

    def tmpfs(self, path: str, size: str) -> None:
        """Mount a small file system, such as ``16m``, for tests of full disks."""
        self.exec(["mkdir", "-p", path])
        self.exec(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path])

    # --- what the bed does with it -------------------------------------------------------------

    def prepare(self, rootfs: Path, pip: machine.PipSettings) -> None:
        """Mount its root and write what makes it this host and no other."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        layers = f"lowerdir={rootfs},upperdir={self.folder}/upper,workdir={self.folder}/work"
        run(["mount", "-t", "overlay", "overlay", "-o", layers, self.root])
        etc = self.root / "etc"
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        (etc / "machine-id").unlink(missing_ok=True)
        (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        machine.configure(self.root, pip)
        self._configure_ssh()

    def _configure_ssh(self) -> None:
        ssh = self.root / "etc/ssh"
        key = ssh / "ssh_host_ed25519_key"
        key.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key])
        (ssh / "sshd_config.d").mkdir(exist_ok=True)
        (ssh / "sshd_config.d" / "bed.conf").write_text(
            "HostKey /etc/ssh/ssh_host_ed25519_key\n"
            "PermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\n"
            "UseDNS no\n"
            "MaxStartups 100\n"
        )
        home = self.root / "root/.ssh"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "authorized_keys").write_text(self.bed.key.with_suffix(".pub").read_text())
        (home / "authorized_keys").chmod(0o600)

    def host_key(self) -> str:
        """Its public key, read from its disk: ``ssh-ed25519 AAAA…``."""
        words = (self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        return " ".join(words[:2])

    def boot(self, binds: Sequence[str]) -> None:
        """Start it in the background; `wait` follows."""
        groups = [group / "host" for group in self._cgroups()]
        for group in groups:
            group.mkdir(parents=True, exist_ok=True)
        marker = self.folder / "running"
        marker.touch()
        space = self.bed.network.namespace(self.index)
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.root}",
            f"--machine={self.bed.network.table}-{self.name}",
            f"--hostname={self.name}",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--console=read-only",
            "--kill-signal=SIGRTMIN+3",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            f"--network-namespace-path=/run/netns/{space}",
            *binds,
        ]
        words = [str(marker), str(self._log), " ".join(str(group) for group in groups), *nspawn]
        subprocess.Popen(
            ["sh", "-c", SUPERVISOR, "glm5-bed", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "LC_ALL": "C",
                # without it a machine with both cgroup versions gives the host the old one
                "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": os.environ.get(
                    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1"
                ),
            },
        )

    def stop(self) -> None:
        """Ask it to power off; see `remove`."""
        (self.folder / "running").unlink(missing_ok=True)
        for process in self._processes():
            if _program(process) == "systemd-nspawn":
                _kill(process, signal.SIGTERM)

    def remove(self) -> None:
        """Wait until it is off (killing what stays longer than 20 s) and take it away."""
        deadline = time.monotonic() + STOP_LIMIT
        while self._processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        while remaining := self._processes():
            for process in remaining:
                _kill(process, signal.SIGKILL)
            time.sleep(0.05)
        for place in reversed(_mounts_under(self.folder)):
            run(["umount", "--lazy", place])
        if self.folder.exists():
            shutil.rmtree(self.folder)
        for group in self._cgroups():
            _remove_cgroup(group)

    @property
    def _log(self) -> Path:
        return self.folder / "console.log"

    def _console(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.is_file() else ""
        return "its console ended with:\n" + "\n".join(text.splitlines()[-15:])

    def _cgroups(self) -> list[Path]:
        return [group / self.name for group in self.bed.cgroups()]

    def _processes(self) -> list[int]:
        found: set[int] = set()
        for group in self._cgroups():
            for folder, _, _ in os.walk(group):  # groups come and go; walk skips what has gone
                with suppress(OSError):
                    text = Path(folder, "cgroup.procs").read_text()
                    found.update(int(line) for line in text.split())
        return sorted(found)

    def _leader(self) -> int | None:
        """The host's process 1, as numbered here."""
        for process in self._processes():
            if _program(process) == "systemd-nspawn":
                for child in _children(process):
                    if _program(child) == "systemd":
                        return child
        return None

    def _check_alive(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise BedError(f"{self.name} did not come up in {BOOT_LIMIT:.0f} s", self._console())
        if not self._processes() and not (self.folder / "running").exists():
            raise BedError(f"{self.name} ended while booting", self._console())

    def _booted(self) -> bool:
        if self._leader() is None:
            return False
        try:
            state = self.exec(["systemctl", "is-system-running"], check=False).stdout.strip()
        except BedError:
            return False
        if state == "degraded":
            failed = self.exec(["systemctl", "--failed", "--no-legend", "--plain"]).stdout
            raise BedError(f"{self.name}: units failed while booting:\n{failed}", self._console())
        return state == "running"

    def _ssh_answers(self) -> bool:
        try:
            with socket.create_connection((self.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


class Bed:
    """Hosts that boot, run and go away together.

    Args:
        folder: where everything about them lies; it names the bed. Its path may hold no space,
            comma, colon or backslash.
        variant: ``bare`` has systemd, sshd and sudo; ``ready`` has Python, a compiler, libnuma and
            rsync too.
        nat: hosts reach what this machine reaches (package mirrors).
    """

    def __init__(self, folder: Path, *, variant: Variant = "ready", nat: bool = False) -> None:
        self.folder = folder.resolve()
        if re.search(r"[\s,:\\]", str(self.folder)):
            raise BedError(
                f"{self.folder}: a bed's path may hold no space, comma, colon or backslash"
            )
        self.variant: Variant = variant
        self.nat = nat
        self.key = self.folder / "id_ed25519"
        self.known_hosts = self.folder / "known_hosts"
        self.ssh_config = self.folder / "ssh_config"
        self.hosts: dict[str, BedHost] = {}
        state = self._state()
        self.network = network.Network(int(state.get("number", 0)))
        self._adopt(state.get("names", []))

    def up(self, names: Sequence[str]) -> None:
        """Boot hosts with these names and wait for them.

        Raises:
            BedUnavailableError: not root, or programs are missing.
            BedError: a host did not come up; the bed is removed again.
        """
        require_prerequisites()
        rootfs = build_rootfs(self.variant)
        self.down()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.network = network.claim(self.folder)
        self._save(names)
        self._adopt(names)
        try:
            self._boot(rootfs)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Power off and remove everything but the cached root file system; safe to call twice."""
        state = self._state()
        if not state:
            return
        for host in self.hosts.values():
            host.stop()
        for host in self.hosts.values():
            host.remove()
        if network.owns(self.network, self.folder):
            self.network.down(len(self.hosts))
            for group in self.cgroups():
                _remove_cgroup(group)
            network.release(self.network)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.hosts = {}

    def running(self) -> bool:
        """Whether there are hosts and all of them run."""
        return bool(self.hosts) and all(host.running() for host in self.hosts.values())

    def connection(self, name: str, user: str = "root") -> dict[str, Any]:
        """The inventory's ``connection`` of a host."""
        return {
            "address": self.hosts[name].address,
            "user": user,
            "port": 22,
            "identity_file": str(self.key),
            "known_hosts": str(self.known_hosts),
            "ssh_config": str(self.ssh_config),
        }

    def inventory_text(
        self,
        *,
        profile: str | None = None,
        profiles: Sequence[Path | str] | None = None,
        user: str = "root",
        defaults: Mapping[str, Any] | None = None,
        hosts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> str:
        """An inventory of all hosts, as YAML.

        Args:
            profile: what they serve.
            profiles: the inventory's ``profiles``: folders or files.
            user: whom to log in as.
            defaults: more keys for ``defaults``.
            hosts: more keys for single hosts; their ``connection`` is complete already.
        """
        shared = {**({"profile": profile} if profile else {}), **(defaults or {})}
        more = hosts or {}
        document: dict[str, Any] = {
            "defaults": shared,
            "hosts": {
                name: {"connection": self.connection(name, user), **more.get(name, {})}
                for name in self.hosts
            },
        }
        if profiles is not None:
            document["profiles"] = [str(path) for path in profiles]
        import yaml

        return yaml.safe_dump(document, sort_keys=False)

    def ssh(self, name: str, user: str = "root") -> list[str]:
        """An OpenSSH command line that reaches a host; a remote command may follow."""
        return [
            "ssh",
            "-F",
            str(self.ssh_config),
            "-i",
            str(self.key),
            "-o",
            f"UserKnownHostsFile={self.known_hosts}",
            f"{user}@{self.hosts[name].address}",
        ]

    def cgroups(self) -> list[Path]:
        """This bed's control groups: one in each hierarchy that systemd uses."""
        split = [CGROUPS / name for name in ("systemd", "unified") if (CGROUPS / name).is_dir()]
        return [base / self.network.table for base in split or [CGROUPS]]

    def _boot(self, rootfs: Path) -> None:
        pip = machine.pip_settings()
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "glm5-bed", "-f", self.key])
        self.ssh_config.write_text("Host *\n    BatchMode yes\n    IdentitiesOnly yes\n")
        self.network.up(len(self.hosts))
        if self.nat:
            self.network.open_nat()
        for host in self.hosts.values():
            host.prepare(rootfs, pip)
        self.known_hosts.write_text(
            "".join(f"{host.address} {host.host_key()}\n" for host in self.hosts.values())
        )
        for host in self.hosts.values():
            host.boot([f"--bind-ro={folder}" for folder in pip.folders()])
        for host in self.hosts.values():
            host.wait()

    def _adopt(self, names: Sequence[str]) -> None:
        self.hosts = {name: BedHost(name, index, self) for index, name in enumerate(names)}

    @property
    def _state_file(self) -> Path:
        return self.folder / "bed.json"

    def _state(self) -> dict[str, Any]:
        try:
            state = json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _save(self, names: Sequence[str]) -> None:
        state = {"number": self.network.number, "names": list(names), "nat": self.nat}
        self._state_file.write_text(json.dumps(state))


def _program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def _children(process: int) -> Iterator[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return
    yield from (int(word) for word in text.split())


def _kill(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _mounts_under(folder: Path) -> list[str]:
    """Mount points at or below a folder, outer ones first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
        if Path(place) == folder or folder in Path(place).parents:
            found.append(place)
    return found


def _remove_cgroup(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(FileNotFoundError):
            os.rmdir(folder)
