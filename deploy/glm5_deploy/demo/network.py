"""A bridge and a network namespace for each host, numbered so that several beds can run."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.demo.rootfs import BedUnavailableError
from glm5_deploy.local_command import locked, run, succeeds

REGISTRY = Path("/run/glm5-bed")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INSTANCES = 1024
"""A host's systemd takes some 30 inotify instances, and all hosts share root's, often 128."""
NUMBERS = 250


@dataclass(frozen=True)
class Network:
    """What is global on a machine carries the bed's number.

    Args:
        number: 0 to 249, drawn from the bed's folder; see `claim`.
    """

    number: int

    @property
    def bridge(self) -> str:
        return f"g5b{self.number}"

    @property
    def gateway(self) -> str:
        return f"10.89.{self.number}.1"

    @property
    def subnet(self) -> str:
        return f"10.89.{self.number}.0/24"

    @property
    def table(self) -> str:
        return f"glm5bed{self.number}"

    def address(self, index: int) -> str:
        """Of the host with this index, from 0."""
        return f"10.89.{self.number}.{10 + index}"

    def namespace(self, index: int) -> str:
        return f"glm5bed{self.number}-{index}"

    def interface(self, index: int) -> str:
        """The bridge's side of a host's link; down, it cuts the host off."""
        return f"g5v{self.number}-{index}"

    def up(self, hosts: int) -> None:
        """Make the bridge and one namespace for each host."""
        self._raise("instances", INOTIFY, INSTANCES)
        run(["ip", "link", "add", self.bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{self.gateway}/24", "dev", self.bridge])
        run(["ip", "link", "set", self.bridge, "up"])
        for index in range(hosts):
            self._attach(index)

    def _attach(self, index: int) -> None:
        space, link = self.namespace(index), self.interface(index)
        run(["ip", "netns", "add", space])
        peer = ("peer", "name", "eth0", "netns", space)
        run(["ip", "link", "add", link, "type", "veth", *peer])
        run(["ip", "link", "set", link, "master", self.bridge, "up"])
        inside = ("ip", "-n", space)
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "address", "add", f"{self.address(index)}/24", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "add", "default", "via", self.gateway])

    def open_nat(self) -> None:
        """Let hosts reach what this machine reaches: package mirrors."""
        rules = f"""
            table ip {self.table} {{
                chain post {{
                    type nat hook postrouting priority 100;
                    ip saddr {self.subnet} oifname != "{self.bridge}" masquerade
                }}
            }}
        """
        run(["nft", "-f", "-"], input=rules.encode())
        self._raise("forwarding", FORWARDING, 1)

    def down(self, hosts: int) -> None:
        """Remove all of it, whatever part is there."""
        for index in range(hosts):
            if Path("/run/netns", self.namespace(index)).exists():
                run(["ip", "netns", "delete", self.namespace(index)])
        if succeeds(["ip", "link", "show", self.bridge]):
            run(["ip", "link", "delete", self.bridge])
        if succeeds(["nft", "list", "table", "ip", self.table]):
            run(["nft", "delete", "table", "ip", self.table])
        self._restore("forwarding", FORWARDING)
        self._restore("instances", INOTIFY)

    def _raise(self, name: str, setting: Path, value: int) -> None:
        """Set one of this machine's kernel settings to ``value`` where it is lower."""
        with locked(REGISTRY / "settings.lock"):
            before = int(setting.read_text())
            saved = REGISTRY / f"{self.number}.{name}"
            if not saved.exists():
                saved.write_text(str(before))
            if before < value:
                setting.write_text(str(value))

    def _restore(self, name: str, setting: Path) -> None:
        """The last bed that needed the setting puts back what the first one found."""
        saved = REGISTRY / f"{self.number}.{name}"
        if not saved.exists():
            return
        with locked(REGISTRY / "settings.lock"):
            before = int(saved.read_text())
            saved.unlink()
            others = list(REGISTRY.glob(f"*.{name}"))
            if others:
                others[0].write_text(str(min(before, int(others[0].read_text()))))
            elif int(setting.read_text()) != before:
                setting.write_text(str(before))


def claim(folder: Path) -> Network:
    """A number for the bed in ``folder``: the same one each time, and one that no other bed has.

    Raises:
        BedUnavailableError: all numbers are taken.
    """
    REGISTRY.mkdir(parents=True, exist_ok=True)
    text = str(folder)
    start = zlib.crc32(text.encode())
    for step in range(NUMBERS):
        number = (start + step) % NUMBERS
        entry = REGISTRY / f"{number}.json"
        try:
            with entry.open("x") as file:
                json.dump({"folder": text}, file)
        except FileExistsError:
            if _owner(entry) != text:
                continue
        return Network(number)
    raise BedUnavailableError(f"all {NUMBERS} bed numbers in {REGISTRY} are taken")


def owns(network: Network, folder: Path) -> bool:
    """Whether the number is this bed's, or no one's any more (the machine was rebooted)."""
    return _owner(REGISTRY / f"{network.number}.json") in ("", str(folder))


def release(network: Network) -> None:
    """Give the number back."""
    (REGISTRY / f"{network.number}.json").unlink(missing_ok=True)


def _owner(entry: Path) -> str:
    try:
        return str(json.loads(entry.read_text())["folder"])
    except (OSError, ValueError, KeyError):
        return ""
