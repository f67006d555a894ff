"""A bridge and a network namespace for each host, numbered so that several beds can run."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.demo.local import run, succeeds
from glm5_deploy.demo.rootfs import BedUnavailableError

REGISTRY = Path("/run/glm5-bed")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
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
        before = FORWARDING.read_text().strip()
        FORWARDING.write_text("1")
        (REGISTRY / f"{self.number}.forwarding").write_text(before)

    def down(self, hosts: int) -> None:
        """Remove all of it, whatever part is there."""
        for index in range(hosts):
            if Path("/run/netns", self.namespace(index)).exists():
                run(["ip", "netns", "delete", self.namespace(index)])
        if succeeds(["ip", "link", "show", self.bridge]):
            run(["ip", "link", "delete", self.bridge])
        if succeeds(["nft", "list", "table", "ip", self.table]):
            run(["nft", "delete", "table", "ip", self.table])
        self._restore_forwarding()

    def _restore_forwarding(self) -> None:
        """The last bed with NAT puts back what the first one found."""
        saved = REGISTRY / f"{self.number}.forwarding"
        if not saved.exists():
            return
        before = saved.read_text()
        saved.unlink()
        others = list(REGISTRY.glob("*.forwarding"))
        if others and before == "0":
            others[0].write_text("0")
        elif not others:
            FORWARDING.write_text(before)


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
