"""Preflight of GPUs: count, driver, capability, health, use, links, devices, limits.

Rows that say "warning" do not stop a deployment: they name what it will cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from glm5_deploy.config.numbers import UTILIZATION, fraction, natural
from glm5_deploy.hosts.facts.gpu import Gpu
from glm5_deploy.hosts.facts.gpu_host import DeviceNode, GpuHost, GpuProcess, Xid, pci_address
from glm5_deploy.report.outcome import Check, CheckStatus
from glm5_deploy.stages.backends import backend_problem, oldest_capability
from glm5_deploy.stages.cuda import BLACKWELL_CUDA, OLDEST_DRIVER, lock_cuda, numbers, shown
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.xids import application_error, meaning

GIB = 1 << 30
IDLE_BYTES = GIB
"""An idle GPU shows up to some hundred MiB that the driver itself holds."""

TASKS_PER_GPU = 512
SHARED_MEMORY = GIB
OPEN_FILES = 65_535
"""vLLM raises its limit to so many (vllm/utils/system_utils.py, `set_ulimit`)."""
UNIT_DEVICES = frozenset({"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps"})
"""The groups that the unit's DeviceAllow names (server.service.j2)."""


@dataclass(frozen=True)
class Finding:
    """One thing that a row has to say."""

    status: CheckStatus
    detail: str
    hint: str


Findings = Iterator[Finding]


@dataclass(frozen=True)
class Situation:
    """The GPUs that the server will use, and all that is known around them."""

    desired: Desired
    observed: Observed
    gpus: Sequence[Gpu]
    host: GpuHost

    def argument(self, name: str) -> object:
        """What the engine is told, by vLLM's name; None where it is left out."""
        return self.desired.target.profile.serve.options.get(name)


def rows(desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """All rows about GPUs; one alone where the profile wants none, or where they are not there."""
    count = count_row(desired, observed)
    if count.status in {"failed", "skipped"} or observed.gpu_host is None:
        return (count,)
    wanted = desired.target.profile.gpus
    indices = wanted.devices if wanted.devices is not None else range(wanted.count)
    gpus = [gpu for gpu in observed.system.gpus.gpus if gpu.index in indices]
    it = Situation(desired, observed, gpus, observed.gpu_host)
    return (
        count,
        _row("driver", driver(it), _driver_detail(it)),
        _row("capability", capability(it), _capability_detail(it)),
        _row("gpu health", health(it), _health_detail(it)),
        _row("gpu use", memory(it), _memory_detail(it)),
        _row("gpu links", links(it), _links_detail(it)),
        _row("gpu devices", devices(it), f"{len(it.host.devices.nodes)} nodes in /dev"),
        _row("limits", limits(it), "open files, tasks and shared memory suffice"),
    )


def _row(name: str, findings: Findings, good: str) -> Check:
    found = list(findings)
    if not found:
        return Check(name, "passed", good)
    failed = [each for each in found if each.status == "failed"]
    shown_first = [*failed, *(each for each in found if each.status != "failed")]
    detail = "; ".join(each.detail for each in shown_first)
    hints = "; ".join(dict.fromkeys(each.hint for each in shown_first))
    return Check(name, "failed" if failed else "warning", detail, hints)


# --- how many ------------------------------------------------------------------------------------


def count_row(desired: Desired, observed: Observed) -> Check:
    """Whether as many GPUs answer as the profile wants, and those that it names."""
    wanted, facts = desired.target.profile.gpus, observed.system.gpus
    found = facts.gpus
    if wanted.count == 0:
        return Check("gpus", "skipped", "the profile wants none")
    if facts.problem:
        hint = (
            "install or repair the NVIDIA driver: `nvidia-smi` must work on the host. After an "
            "update of the driver reboot; a GPU that is lost needs a reset or a power cycle"
        )
        return Check("gpus", "failed", facts.problem + _lost(observed), hint)
    if len(found) < wanted.count:
        hint = f"lower {_count_of_gpus(desired)}, or use another host"
        detail = f"{len(found)} found, {wanted.count} wanted{_lost(observed)}"
        return Check("gpus", "failed", detail, hint)
    problem = next(_choice_problems(desired, found), None)
    if problem is not None:
        return Check("gpus", "failed", *problem)
    return Check("gpus", "passed", _models(found))


def _lost(observed: Observed) -> str:
    """What the kernel's log says of a GPU that no longer answers; empty where it says nothing."""
    present = {pci_address(gpu.bus_id) for gpu in observed.system.gpus.gpus}
    xids = observed.gpu_host.xids if observed.gpu_host is not None else None
    lost = [xid for xid in xids or () if pci_address(xid.bus_id) not in present]
    lost = [xid for xid in lost if not application_error(xid.number)]
    if not lost:
        return ""
    xid = lost[-1]
    return f"; Xid {xid.number} of {xid.bus_id}{_ago(xid, observed)}: {meaning(xid.number)}"


def _models(gpus: Sequence[Gpu]) -> str:
    names = [gpu.name for gpu in gpus]
    counted = {name: names.count(name) for name in names}
    return ", ".join(f"{count} × {name}" for name, count in counted.items())


def _count_of_gpus(desired: Desired) -> str:
    """Where the number is said: profiles that several sizes of hosts share take a variable."""
    if "gpus" in desired.target.settings.vars:
        return "vars.gpus"
    return "gpus.count with tensor-parallel-size (or the variable that the profile takes them from)"


def _choice_problems(desired: Desired, found: Sequence[Gpu]) -> Iterator[tuple[str, str]]:
    wanted = desired.target.profile.gpus
    indices = {gpu.index for gpu in found}
    for index in wanted.devices or []:
        if index not in indices:
            yield f"gpus.devices names {index}", f"there are {sorted(indices)}"
    chosen = wanted.devices if wanted.devices is not None else range(wanted.count)
    for gpu in found:
        need = wanted.min_memory_gib
        if need and gpu.index in chosen and gpu.memory_total < need * GIB:
            have = f"GPU {gpu.index} has {gpu.memory_total / GIB:.0f} GiB"
            yield have, f"gpus.min_memory_gib is {need}"


# --- driver and capability -----------------------------------------------------------------------


def driver(it: Situation) -> Findings:
    """The driver against the profile's floor and against the CUDA of the lock."""
    facts, wanted = it.observed.system.gpus, it.desired.target.profile.gpus
    if facts.driver is None:
        return
    if wanted.min_driver and numbers(facts.driver) < numbers(wanted.min_driver):
        hint = f"update the driver: gpus.min_driver is {wanted.min_driver}"
        yield Finding("failed", f"driver {facts.driver}", hint)
    lock, runs = _lock_cuda(it), numbers(facts.cuda or "")
    if lock is None or not runs or runs >= lock:
        return
    said = f"driver {facts.driver} runs CUDA {shown(runs)}, the lock is for {shown(lock)}"
    if runs[0] < lock[0]:
        oldest = OLDEST_DRIVER.get(lock[0], "a newer one")
        hint = (
            f"update the driver to {oldest} or later, or set engine.lock to one for an older CUDA"
        )
        yield Finding("failed", said, hint)
    else:
        hint = "compiled code runs; what is compiled at run time may not: update the driver"
        yield Finding("warning", said, hint)


def _lock_cuda(it: Situation) -> tuple[int, ...] | None:
    venv = it.desired.venv
    return None if venv is None else lock_cuda(venv.lock)


def _driver_detail(it: Situation) -> str:
    facts, lock = it.observed.system.gpus, _lock_cuda(it)
    text = f"{facts.driver or 'of unknown version'}, CUDA {facts.cuda or 'not said'}"
    return f"{text}; the lock is for {shown(lock)}" if lock else text


def capability(it: Situation) -> Findings:
    """One capability for all GPUs, with which the backend, the kernels and the lock can work."""
    known = {gpu.compute_capability for gpu in it.gpus if gpu.compute_capability is not None}
    if len(known) > 1:
        hint = "serve on GPUs that are alike: choose them with gpus.devices"
        yield Finding("failed", f"different GPUs: {_by_capability(it)}", hint)
        return
    if len({gpu.memory_total for gpu in it.gpus}) > 1:
        least = min(gpu.memory_total for gpu in it.gpus)
        detail = f"GPUs of different memory: each is used like the smallest, {least / GIB:.0f} GiB"
        yield Finding("warning", detail, "choose others with gpus.devices")
    for found in known:
        yield from _capability_problems(it, found)


def _capability_problems(it: Situation, found: tuple[int, int]) -> Findings:
    lock, name = _lock_cuda(it), it.argument("attention-backend")
    if lock is not None and found[0] >= 12 and lock < BLACKWELL_CUDA:
        detail = f"capability {shown(found)} needs CUDA 12.8, the lock is for {shown(lock)}"
        yield Finding("failed", detail, "set engine.lock to one for CUDA 12.8 or later")
    problem = backend_problem(name, found) if isinstance(name, str) else None
    if problem is not None:
        hint = "set serve.args.attention-backend to CUSTOM (glm5-kernel), or leave it out"
        yield Finding("failed", problem, hint)
    oldest = oldest_capability(it.desired.target.profile)
    if oldest is not None and found < oldest:
        detail = f"capability {shown(found)}: the profile's model needs {shown(oldest)}"
        hint = "vLLM's own kernels for sparse MLA and fp8 KV caches need fp8 in hardware (Ada on)"
        yield Finding("failed", detail, hint)


def _by_capability(it: Situation) -> str:
    parts = (f"{gpu.index}: {gpu.name} ({shown(gpu.compute_capability or ())})" for gpu in it.gpus)
    return ", ".join(parts)


def _capability_detail(it: Situation) -> str:
    found = next((gpu.compute_capability for gpu in it.gpus if gpu.compute_capability), None)
    if found is None:
        return "not said by this driver"
    name = it.argument("attention-backend")
    return f"{shown(found)}, attention backend {name}" if name else shown(found)


# --- health --------------------------------------------------------------------------------------


def health(it: Situation) -> Findings:
    """MIG, ECC errors, Xid errors since the boot, persistence, lanes."""
    for gpu in it.gpus:
        if gpu.mig:
            hint = (
                f"switch it off (`nvidia-smi -i {gpu.index} -mig 0`), or name others in "
                "gpus.devices"
            )
            yield Finding("failed", f"GPU {gpu.index} is split by MIG", hint)
        if gpu.ecc_errors:
            hint = (
                "stop what uses the GPU and reset it (`nvidia-smi --gpu-reset -i N`), or reboot; "
                "where they come back, the GPU is broken"
            )
            detail = f"GPU {gpu.index} has {gpu.ecc_errors} uncorrected ECC errors"
            yield Finding("warning", detail, hint)
    yield from _xids(it)
    off = [gpu.index for gpu in it.gpus if gpu.persistence is False]
    if off:
        detail = f"persistence mode is off on GPU {_listed(off)}: every start waits for the driver"
        hint = "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` after each boot"
        yield Finding("warning", detail, hint)
    yield from _lanes(it)


def _xids(it: Situation) -> Findings:
    places = {pci_address(gpu.bus_id): gpu.index for gpu in it.gpus}
    last: dict[tuple[int, int], Xid] = {}
    for xid in it.host.xids or ():
        index = places.get(pci_address(xid.bus_id))
        if index is not None and not application_error(xid.number):
            last[index, xid.number] = xid
    for (index, number), xid in sorted(last.items()):
        detail = f"Xid {number} on GPU {index}{_ago(xid, it.observed)}: {meaning(number)}"
        hint = "look at `journalctl -k --grep Xid`; reset the GPU or reboot where it still acts up"
        yield Finding("warning", detail, hint)


def _health_detail(it: Situation) -> str:
    unread = "; the kernel's log cannot be read here"
    return "no MIG, no ECC errors" + (unread if it.host.xids is None else ", no Xid since the boot")


def _ago(xid: Xid, observed: Observed) -> str:
    if xid.at is None:
        return ""
    minutes = max(observed.system.machine.clock - xid.at, 0) / 60
    return f", {minutes:.0f} min ago" if minutes < 120 else f", {minutes / 60:.0f} h ago"


def _lanes(it: Situation) -> Findings:
    for gpu in it.gpus:
        if gpu.lanes is not None and gpu.lanes[0] * 2 <= gpu.lanes[1]:
            used, there = gpu.lanes
            detail = (
                f"GPU {gpu.index} has {used} of {there} PCIe lanes: loading and all-reduce are "
                "slower"
            )
            yield Finding("warning", detail, "look at its slot, riser and the firmware's settings")


# --- memory --------------------------------------------------------------------------------------


def memory(it: Situation) -> Findings:
    """Memory that others hold; what our own server holds is free again when it is replaced."""
    share = fraction(it.argument("gpu-memory-utilization"))
    wanted = UTILIZATION if share is None else share
    for gpu in it.gpus:
        ours, others = _processes(it, gpu)
        held = _held_by_others(gpu, ours, others, _serving(it))
        free = gpu.memory_total - held
        if gpu.memory_total and free < wanted * gpu.memory_total:
            detail = (
                f"GPU {gpu.index}: {held / GIB:.1f} GiB are held by {_who(others)}; "
                f"{wanted:.0%} of {gpu.memory_total / GIB:.0f} GiB are wanted"
            )
            yield Finding("failed", detail, _free_it(others))
        elif others:
            yield Finding(
                "warning",
                f"GPU {gpu.index} is also used by {_who(others)} ({held / GIB:.1f} GiB)",
                "both get slower, and one may run out of memory",
            )


def _processes(it: Situation, gpu: Gpu) -> tuple[list[GpuProcess], list[GpuProcess]]:
    """Our own server's and the others'. In a container ours may be one that cannot be seen."""
    incumbent = it.observed.deployment.incumbent
    names = {it.desired.paths.unit} | ({incumbent.unit} if incumbent is not None else set())
    names |= {"?"} if _serving(it) else set()
    here = [process for process in it.host.processes if process.gpu == gpu.uuid]
    ours = [process for process in here if process.unit in names]
    return ours, [process for process in here if process.unit not in names]


def _serving(it: Situation) -> bool:
    incumbent = it.observed.deployment.incumbent
    return it.observed.unit.active or (incumbent is not None and incumbent.running)


def _held_by_others(
    gpu: Gpu, ours: list[GpuProcess], others: list[GpuProcess], serving: bool
) -> int:
    """Bytes. What no process here accounts for is our running server's, else somebody's."""
    if serving and not (ours and all(process.memory is not None for process in ours)):
        return sum(process.memory or 0 for process in others)
    left = gpu.memory_used - sum(process.memory or 0 for process in ours)
    return max(left, 0) if left > IDLE_BYTES or others else 0


def _who(others: list[GpuProcess]) -> str:
    if not others:
        return "processes that cannot be seen here (another container, or a dead server's workers)"
    named = [
        f"{process.name.rpartition('/')[2]} (pid {process.pid}"
        f"{', ' + process.unit if process.unit.strip('?') else ''})"
        for process in others
    ]
    return ", ".join(dict.fromkeys(named))


def _free_it(others: list[GpuProcess]) -> str:
    if others:
        return "stop them, choose other GPUs with gpus.devices, or lower gpu-memory-utilization"
    return (
        "find them with `fuser -v /dev/nvidia*` as root; a reset or reboot frees what is left over"
    )


def _memory_detail(it: Situation) -> str:
    least = min(gpu.memory_total for gpu in it.gpus)
    return f"{len(it.gpus)} × {least / GIB:.0f} GiB, used by nobody else"


# --- links ---------------------------------------------------------------------------------------


def links(it: Situation) -> Findings:
    """Whether GPUs that work on one model reach each other directly."""
    pairs = list(combinations(sorted(gpu.index for gpu in it.gpus), 2))
    barred = [pair for pair in pairs if it.host.links.peers.get(pair, "OK") != "OK"]
    if barred:
        why = ", ".join(sorted({it.host.links.peers[pair] for pair in barred}))
        detail = (
            f"{len(barred)} of {len(pairs)} pairs of GPUs have no peer-to-peer access ({why}): "
            "every all-reduce, two a layer, goes through main memory"
        )
        hint = (
            "it works, but each token and long prompts take longer; NCCL_P2P_DISABLE=1 in "
            "environment spares NCCL the attempt. A driver and firmware with P2P, or GPUs below "
            "one switch, avoid it"
        )
        yield Finding("warning", detail, hint)
    elif pairs:
        yield from _translated(it)
    yield from _nearer(it)


def _nearer(it: Situation) -> Findings:
    """GPUs on two processors are chosen while one of them has enough."""
    paths, chosen = it.host.links.paths, sorted(gpu.index for gpu in it.gpus)
    if all(paths.get(pair) != "SYS" for pair in combinations(chosen, 2)):
        return
    everyone = [gpu.index for gpu in it.observed.system.gpus.gpus]
    for one in everyone:
        side = [each for each in everyone if paths.get(_pair(one, each)) != "SYS"]
        if len(side) >= len(chosen):
            names = _listed(side[: len(chosen)])
            detail = f"GPU {_listed(chosen)} lie on different processors"
            hint = f"all-reduce crosses the link between them: gpus.devices [{names}] does not"
            yield Finding("warning", detail, hint)
            return


def _pair(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)


def _translated(it: Situation) -> Findings:
    types = {pci_address(address): kind for address, kind in it.host.links.iommu.items()}
    found = [gpu.index for gpu in it.gpus if "DMA" in types.get(pci_address(gpu.bus_id), "")]
    direct = all(
        it.host.links.paths.get(pair, "").startswith("NV")
        for pair in combinations(sorted(gpu.index for gpu in it.gpus), 2)
    )
    if found and not direct:
        detail = (
            f"the IOMMU translates what GPU {_listed(found)} send each other: NCCL is known to "
            "hang on such hosts (NVIDIA/nccl#1999)"
        )
        hint = (
            "boot with iommu=pt, or switch IOMMU and ACS off in the firmware; if a load hangs, set "
            "NCCL_P2P_DISABLE=1 in environment and disable-custom-all-reduce in serve.args"
        )
        yield Finding("warning", detail, hint)


def _links_detail(it: Situation) -> str:
    pairs = list(combinations(sorted(gpu.index for gpu in it.gpus), 2))
    if not pairs:
        return "one GPU"
    kinds = [it.host.links.paths.get(pair, "unknown") for pair in pairs]
    counted = {kind: kinds.count(kind) for kind in kinds}
    told = ", ".join(f"{count} × {kind}" for kind, count in counted.items())
    peers = " with peer-to-peer access" if it.host.links.peers else ""
    return f"{told}{peers}"


# --- devices and limits --------------------------------------------------------------------------


def devices(it: Situation) -> Findings:
    """Device nodes that are there, that the user may use, and that the unit allows."""
    nodes = {node.path.name: node for node in it.host.devices.nodes}
    for name in ("nvidiactl", "nvidia-uvm"):
        if name not in nodes:
            hint = (
                "run `nvidia-modprobe -u -c 0` as root, at every boot (by a udev rule or a unit): "
                "the sandbox does not let the service make it itself"
            )
            yield Finding("failed", f"/dev/{name} is not there", hint)
    used = [
        nodes[name]
        for name in nodes
        if name in {"nvidiactl", "nvidia-uvm"} or natural(name[6:]) is not None
    ]
    closed = [node for node in used if not _open(node, it.host.devices.groups)]
    if closed:
        first, user = closed[0], it.desired.target.profile.unit.user
        detail = f"{user} may not use {first.path} (mode {first.mode:o}, group {first.group})"
        hint = f"`usermod --append --groups {first.group} {user}`, or NVreg_DeviceFileMode=0666"
        yield Finding("failed", detail, hint)
    if it.desired.target.profile.unit.hardening:
        yield from _barred_devices(it, used)


def _open(node: DeviceNode, groups: Sequence[str]) -> bool:
    return node.mode & 0o6 == 0o6 or (node.mode & 0o60 == 0o60 and node.group in groups)


def _barred_devices(it: Situation, used: Sequence[DeviceNode]) -> Findings:
    for node in used:
        names = it.host.devices.majors.get(node.major, ())
        if not UNIT_DEVICES & set(names):
            detail = (
                f"{node.path} has major number {node.major} ({', '.join(names) or 'no driver'}), "
                "which the unit's sandbox does not allow"
            )
            hint = (
                "this driver names its devices otherwise: report it; unit.hardening: false serves "
                "without the sandbox meanwhile"
            )
            yield Finding("failed", detail, hint)
            return


def limits(it: Situation) -> Findings:
    """What the unit asks for against what the system allows."""
    found, wanted = it.host.limits, it.desired.target.profile.unit.nofile
    if found.open_files is not None and found.open_files < wanted:
        detail = f"fs.nr_open is {found.open_files}, unit.nofile {wanted}"
        yield Finding("warning", detail, f"`sysctl -w fs.nr_open={wanted}`, or lower unit.nofile")
    granted, useful = found.granted_files, min(wanted, OPEN_FILES)
    if granted is not None and granted < useful:
        detail = f"systemd can give a process {granted} open files here, vLLM wants {useful}"
        hint = "raise the limit of what starts this container; until then vLLM has room for fewer"
        yield Finding("warning", detail, f"{hint} connections at once")
    need = TASKS_PER_GPU * len(it.gpus)
    if found.tasks is not None and found.tasks < need:
        detail = f"systemd allows a unit {found.tasks} tasks; {len(it.gpus)} GPUs may take {need}"
        yield Finding("warning", detail, "raise DefaultTasksMax in /etc/systemd/system.conf")
    shared = found.shared_memory
    if len(it.gpus) > 1 and shared is not None and shared < SHARED_MEMORY:
        detail = f"{shared / GIB:.2f} GiB free in /dev/shm, in which workers and NCCL talk"
        hint = "enlarge it (`mount -o remount,size=16G /dev/shm`), or remove what lies there"
        yield Finding("failed", detail, hint)


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))
