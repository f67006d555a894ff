"""What lies around the GPUs: who uses them, how they are linked, what kernel and system say.

Asked only of hosts that serve on GPUs, beside `gpu.GPU_FACT`; all in the same round trip.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from glm5_deploy.config.numbers import natural
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

SHOW_PROCESSES = r"""
command -v nvidia-smi >/dev/null || exit 45
fields=gpu_uuid,pid,used_memory,process_name
rows=$(nvidia-smi --query-compute-apps=$fields --format=csv,noheader,nounits) || exit 1
printf '%s\n' "$rows" | while IFS= read -r row; do
  pid=$(printf '%s' "$row" | cut -d , -f 2 | tr -d ' ')
  unit=?
  [ -d "/proc/$pid" ] && unit=$(grep -o '[^/]*\.service' "/proc/$pid/cgroup" | tail -n 1)
  printf '%s|%s\n' "$unit" "$row"
done
"""
"""Each process on a GPU, after the systemd unit that it belongs to; ``?`` where the process is not
among those that can be seen here, as in a container."""

SHOW_LINKS = r"""
command -v nvidia-smi >/dev/null || exit 45
nvidia-smi topo -m
echo '--- p2p'
nvidia-smi topo -p2p r
echo '--- iommu'
for device in /sys/bus/pci/devices/*; do
  [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
  case $(cat "$device/class") in 0x0300*|0x0302*) ;; *) continue ;; esac
  echo "${device##*/} $(cat "$device/iommu_group/type" 2>/dev/null || echo none)"
done
exit 0
"""

SHOW_KERNEL_LOG = r"""
log=$(journalctl --dmesg --boot --quiet --no-pager --output=short-unix 2>/dev/null)
[ -n "$log" ] || log=$(dmesg 2>/dev/null)
[ -n "$log" ] || exit 3
printf '%s\n' "$log" | grep -F 'NVRM: Xid' | tail -n 200
exit 0
"""
"""Status 3 where nothing at all can be read: no rights, or a container."""

SHOW_DEVICES = r"""
sed -n '/^Character/,/^$/p' /proc/devices | grep -i nvidia
echo '--- nodes'
for node in /dev/nvidia*; do
  [ -c "$node" ] && stat -c '%n %t %a %G' "$node"
done
echo '--- groups'
id -Gn -- "$1" 2>/dev/null
exit 0
"""
"""$1 the service's user. Character devices by major number, nodes with theirs in hexadecimal."""

SHOW_LIMITS = r"""
echo "nr_open=$(cat /proc/sys/fs/nr_open)"
echo "nofile=$(sed -n 's/^Max open files *[^ ]* *\([^ ]*\) .*/\1/p' /proc/1/limits 2>/dev/null)"
echo "caps=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/1/status 2>/dev/null)"
read -r _ _ ids </proc/self/uid_map && echo "ids=$ids"
echo "tasks=$(systemctl show --property=DefaultTasksMax --value)"
echo "shm=$(df --block-size=1 --output=avail /dev/shm | tail -n 1 | tr -d ' ')"
exit 0
"""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+), (.*)")
_CAP_SYS_RESOURCE = 24
_ALL_IDS = str(2**32 - 1)
_STAMP = re.compile(r"(\d{9,}\.\d+) ")


@dataclass(frozen=True)
class GpuProcess:
    """A program that has a CUDA context.

    Args:
        gpu: UUID.
        memory: bytes; None where the driver does not say (containers).
        unit: the systemd service that it is part of; empty where it is none, ``?`` where the
            process cannot be seen.
    """

    gpu: str
    pid: int
    memory: int | None
    name: str
    unit: str


@dataclass(frozen=True)
class Links:
    """How GPUs reach each other; pairs are of indices, the smaller first.

    Args:
        paths: by pair: NV12 (NVLink), PIX, PXB, PHB, NODE or SYS, from near to far.
        peers: by pair, whether one can read the other's memory: OK, or why not (NS, CNS, …).
        iommu: by PCI address: DMA or DMA-FQ (translated), identity (passed through), none.
    """

    paths: Mapping[tuple[int, int], str]
    peers: Mapping[tuple[int, int], str]
    iommu: Mapping[str, str]


@dataclass(frozen=True)
class Xid:
    """An error that the driver reported since the boot.

    Args:
        bus_id: of the GPU, as ``domain:bus:device``.
        at: the host's seconds since 1970; None where the log has no such times.
    """

    bus_id: str
    number: int
    text: str
    at: float | None


@dataclass(frozen=True)
class DeviceNode:
    """A node below /dev: its major number, permission bits and group."""

    path: PurePosixPath
    major: int
    mode: int
    group: str


@dataclass(frozen=True)
class Devices:
    """The driver's character devices.

    Args:
        majors: number → names, such as 195 → nvidia, nvidiactl.
        groups: of the service's user; empty while it does not exist.
    """

    majors: Mapping[int, tuple[str, ...]]
    nodes: tuple[DeviceNode, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class SystemLimits:
    """What no unit can go beyond.

    Args:
        open_files: the kernel's limit for one process.
        granted_files: what systemd can give a process of it, where it is not free to raise its own
            limit (in most containers); None where it is, or nothing is known.
        tasks: threads and processes that systemd allows a unit; None for no limit.
        shared_memory: bytes that are free in /dev/shm.
    """

    open_files: int | None
    tasks: int | None
    shared_memory: int | None
    granted_files: int | None = None


@dataclass(frozen=True)
class GpuHost:
    """All of this module's facts.

    Args:
        xids: None where the kernel's log cannot be read.
    """

    processes: tuple[GpuProcess, ...]
    links: Links
    xids: tuple[Xid, ...] | None
    devices: Devices
    limits: SystemLimits


def pci_address(text: str) -> tuple[int, ...]:
    """Domain, bus and device as numbers, from any of the ways in which they are written; empty
    where a driver says something else (``[N/A]``).
    """
    parts = [part for part in re.split(r"[:.]", text)[:3] if part]
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return ()


def parse_processes(output: FactOutput) -> tuple[GpuProcess, ...]:
    """Read what `SHOW_PROCESSES` prints."""
    found = []
    for line in output.stdout.splitlines():
        unit, bar, row = line.partition("|")
        fields = next(csv.reader([row], skipinitialspace=True), [])
        if not bar or len(fields) < 4:
            continue
        pid, mebibytes = natural(fields[1].strip()), natural(fields[2])
        if pid is not None:
            memory = None if mebibytes is None else mebibytes * 2**20
            found.append(GpuProcess(fields[0], pid, memory, ",".join(fields[3:]), unit))
    return tuple(found)


def parse_links(output: FactOutput) -> Links:
    """Read what `SHOW_LINKS` prints."""
    text = _ANSI.sub("", output.stdout)
    paths, _, rest = text.partition("--- p2p\n")
    peers, _, iommu = rest.partition("--- iommu\n")
    pairs = (line.split() for line in iommu.splitlines())
    types = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return Links(_matrix(paths), _matrix(peers), types)


def _matrix(text: str) -> dict[tuple[int, int], str]:
    """The cells between GPUs of a table of ``nvidia-smi topo``."""
    cells: dict[tuple[int, int], str] = {}
    columns: list[int] = []
    for line in text.splitlines():
        words = line.split()
        named = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d+", word)]
        if not named:
            continue
        if len(named) > 1 or not columns:
            columns = named
            continue
        for column, cell in zip(columns, words[1:], strict=False):
            if column > named[0]:
                cells[named[0], column] = cell
    return cells


def parse_kernel_log(output: FactOutput) -> tuple[Xid, ...] | None:
    """Read what `SHOW_KERNEL_LOG` prints; None where the log cannot be read."""
    if output.returncode != 0:
        return None
    found = []
    for line in output.stdout.splitlines():
        xid = _XID.search(line)
        if xid:
            stamp = _STAMP.match(line)
            at = float(stamp[1]) if stamp else None
            found.append(Xid(xid[1], int(xid[2]), xid[3].strip(), at))
    return tuple(found)


def parse_devices(output: FactOutput) -> Devices:
    """Read what `SHOW_DEVICES` prints."""
    registered, _, rest = output.stdout.partition("--- nodes\n")
    nodes, _, groups = rest.partition("--- groups\n")
    majors: dict[int, tuple[str, ...]] = {}
    for line in registered.splitlines():
        words = line.split()
        number = natural(words[0]) if len(words) == 2 else None
        if number is not None:
            majors[number] = (*majors.get(number, ()), words[1])
    found = (_node(line.split()) for line in nodes.splitlines())
    present = tuple(node for node in found if node is not None)
    return Devices(majors, present, tuple(groups.split()))


def _node(words: list[str]) -> DeviceNode | None:
    try:
        path, major, mode, group = words
        return DeviceNode(PurePosixPath(path), int(major, 16), int(mode, 8), group)
    except ValueError:
        return None


def parse_limits(output: FactOutput) -> SystemLimits:
    """Read what `SHOW_LIMITS` prints."""
    values = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)

    def number(name: str) -> int | None:
        found = natural(values.get(name, ""))
        return found if found is not None and found < 2**63 else None

    granted = None if _may_raise(values) else number("nofile")
    return SystemLimits(number("nr_open"), number("tasks"), number("shm"), granted)


def _may_raise(values: Mapping[str, str]) -> bool:
    """Whether systemd may go beyond its own limit, which takes a capability of the host itself."""
    try:
        capable = int(values.get("caps", ""), 16) >> _CAP_SYS_RESOURCE & 1
    except ValueError:
        return False
    return bool(capable) and values.get("ids") == _ALL_IDS


def gpu_host_fact_list(user: str) -> list[Fact[Any]]:
    """The facts behind `GpuHost`.

    Args:
        user: the service's.
    """
    return [
        Fact("gpu_processes", script(SHOW_PROCESSES), parse_processes),
        Fact("gpu_links", script(SHOW_LINKS), parse_links),
        Fact("gpu_kernel_log", script(SHOW_KERNEL_LOG), parse_kernel_log),
        Fact("gpu_devices", script(SHOW_DEVICES, user), parse_devices),
        Fact("gpu_limits", script(SHOW_LIMITS), parse_limits),
    ]


def gpu_host(values: Mapping[str, Any]) -> GpuHost:
    """Put together what `gather` gave for `gpu_host_fact_list`."""
    names = ("processes", "links", "kernel_log", "devices", "limits")
    return GpuHost(*(values[f"gpu_{name}"] for name in names))
