"""After the other checks: every GPU of the profile is in use, and none has reported an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glm5_deploy.errors import CommandFailedError
from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput, gather
from glm5_deploy.hosts.facts.gpu import GPU_FACT, Gpu, GpuFacts
from glm5_deploy.hosts.facts.gpu_host import SHOW_KERNEL_LOG, Xid, parse_kernel_log, pci_address
from glm5_deploy.smoke.context import CheckFailed, CheckSkipped, Context
from glm5_deploy.stages.xids import meaning

GIB = 1 << 30
USED_BYTES = GIB // 4
"""A rank's CUDA context with the smallest of models takes more."""

_STARTED = (
    'cut -d " " -f 1 /proc/uptime; date +%s.%N; '
    'systemctl show --property=ExecMainStartTimestampMonotonic --value -- "$1"'
)


@dataclass(frozen=True)
class Found:
    """What the host says now.

    Args:
        xids: None where the kernel's log cannot be read.
        started: in the host's seconds since 1970; None where nothing runs.
    """

    gpus: GpuFacts
    xids: tuple[Xid, ...] | None
    started: float | None


def gpus(context: Context) -> str:
    """Memory of each GPU that the server should use, and no Xid or ECC error since it started."""
    spec = context.profile.gpus
    if spec.count == 0:
        raise CheckSkipped("the profile wants none")
    found = _look(context)
    if found.gpus.problem:
        raise CheckFailed(found.gpus.problem, "see `dmesg | grep -e NVRM -e Xid` on the host")
    indices = list(spec.devices if spec.devices is not None else range(spec.count))
    used = [gpu for gpu in found.gpus.gpus if gpu.index in indices]
    problem = _problem(used, indices, found)
    if problem is not None:
        raise CheckFailed(*problem)
    held = (f"{pick(gpu.memory_used for gpu in used) / GIB:.1f}" for pick in (min, max))
    span = " to ".join(dict.fromkeys(held))
    total = min(gpu.memory_total for gpu in used) / GIB
    said = "the kernel's log cannot be read here" if found.xids is None else "no Xid"
    # Each would have left an Xid, and none is there since the start.
    said += "".join(f", GPU {gpu.index} had ECC errors before" for gpu in used if gpu.ecc_errors)
    return f"{len(used)} × {span} of {total:.0f} GiB in use, {said}"


def _look(context: Context) -> Found:
    log = Fact("log", script(SHOW_KERNEL_LOG), parse_kernel_log)
    started = Fact("started", script(_STARTED, context.profile.unit_name), parse_started)
    try:
        values = gather(context.host, [GPU_FACT, log, started])
    except CommandFailedError as error:
        raise CheckFailed(error.message, error.hint) from error
    return Found(values["gpus"], values["log"], values["started"])


def parse_started(output: FactOutput) -> float | None:
    """When the unit's process started, from the three lines of `_STARTED`."""
    try:
        uptime, now, monotonic = map(float, output.stdout.split())
    except ValueError:
        return None
    return now - uptime + monotonic / 1e6 if monotonic else None


def _problem(used: list[Gpu], indices: list[int], found: Found) -> tuple[str, str] | None:
    for xid, place in _since_the_start(used, found):
        hint = "`journalctl -k --grep Xid` on the host has more; see `logs --explain`, too"
        return f"Xid {xid.number} on {place} since the start: {meaning(xid.number)}", hint
    for gpu in used:
        if gpu.ecc_errors and found.xids is None:
            return (
                f"GPU {gpu.index} has {gpu.ecc_errors} uncorrected ECC errors, and the kernel's"
                " log, which would say since when, cannot be read",
                f"reset it (`nvidia-smi --gpu-reset -i {gpu.index}`); where they come back, replace"
                " it",
            )
    idle = [gpu.index for gpu in used if gpu.memory_total and gpu.memory_used < USED_BYTES]
    idle += [index for index in indices if index not in {gpu.index for gpu in used}]
    if idle:
        return (
            f"GPU {', '.join(map(str, idle))} is not used by the server",
            "gpus.count and tensor-parallel-size must agree; see CUDA_VISIBLE_DEVICES in `render`",
        )
    return None


def _since_the_start(used: list[Gpu], found: Found) -> Iterator[tuple[Xid, str]]:
    """Errors of the server's GPUs, and of one that no longer answers: it may have been one."""
    ours = {pci_address(gpu.bus_id): f"GPU {gpu.index}" for gpu in used}
    present = {pci_address(gpu.bus_id) for gpu in found.gpus.gpus}
    for xid in found.xids or ():
        address = pci_address(xid.bus_id)
        if xid.at is None or xid.at < (found.started or 0.0):
            continue
        if address in ours:
            yield xid, ours[address]
        elif address not in present:
            yield xid, f"{xid.bus_id}, a GPU that no longer answers,"
