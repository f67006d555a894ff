"""The plan of a host's GPU memory: as data for a table, and as a row of preflight."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePosixPath

from glm5_deploy.config.models import Target
from glm5_deploy.errors import CommandFailedError, Glm5Error
from glm5_deploy.hosts.facts.gpu import Gpu
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.peer import Peers
from glm5_deploy.memory.header import HeaderError, Place, exists, inspect_place, shape_of
from glm5_deploy.memory.plan import GpuMemory, MemoryPlan, plan
from glm5_deploy.memory.settings import Settings, UnplannedError, read_settings
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed

NAME = "gpu memory"


class NotPlannedError(Glm5Error):
    """There is nothing to plan; the message says why."""


def rows(
    host: Host, desired: Desired, observed: Observed, peers: Peers | None = None
) -> tuple[Check, ...]:
    """One row where the model is GGUF and the host has GPUs, else none."""
    if not plannable(desired.target) or not observed.system.gpus.gpus:
        return ()
    try:
        made = memory_plan(host, desired.target, observed, peers)
    except NotPlannedError as error:
        return (Check(NAME, "skipped", error.message),)
    except CommandFailedError as error:
        # What the login user may not read, the service's user perhaps may.
        return (Check(NAME, "skipped", error.message),)
    except HeaderError as error:
        return (Check(NAME, "failed", error.message.replace("\n", "; "), error.hint),)
    return (row_of(made),)


def row_of(made: MemoryPlan) -> Check:
    """The plan in one row."""
    if made.problems:
        details, hints = zip(*made.problems, strict=True)
        return Check(NAME, "failed", "; ".join(details), "; ".join(dict.fromkeys(hints)))
    gib, settings = 1 << 30, made.settings
    each = f" on each of {made.model.tp}" if made.model.tp > 1 else ""
    detail = (
        f"weights {made.weights / gib:.1f} GiB{each}, KV cache {made.kv / gib:.1f} GiB ="
        f" {made.kv_tokens:,} tokens, {made.sequences:,.1f} requests of {settings.context:,}"
    )
    return Check(NAME, "passed", detail)


def plannable(target: Target) -> bool:
    """Whether the profile is about a GGUF model on GPUs."""
    profile = target.profile
    return profile.gpus.count > 0 and profile.model.serve.endswith(".gguf")


def memory_plan(
    host: Host, target: Target, observed: Observed, peers: Peers | None = None
) -> MemoryPlan:
    """Read the header and plan.

    Raises:
        NotPlannedError: no GPU, no file to read yet, or arguments that are not planned for.
        HeaderError: the file is no model that glm5-kernel loads, or cannot be cut so.
    """
    if not plannable(target):
        raise NotPlannedError("the profile serves no GGUF file on GPUs")
    gpus = _gpus(target, observed)
    if not gpus:
        raise NotPlannedError("no GPU was found")
    try:
        # The header tells the model's own context; the arguments tell how many GPUs share it.
        asked = _settings(target, 1, gpus)
        with model_place(host, target, peers) as place:
            found = inspect_place(place, tps=(asked.tp,), mtp=asked.mtp)
        settings = _settings(target, found.hp.context, gpus)
    except UnplannedError as error:
        raise NotPlannedError(str(error)) from error
    if found.problems:
        raise HeaderError("\n".join(found.problems))
    there = len(observed.system.gpus.gpus)
    return plan(shape_of(found, settings.tp), settings, gpus, there)


def _settings(target: Target, context: int, gpus: list[GpuMemory]) -> Settings:
    smallest = min(gpu.total for gpu in gpus)
    profile = target.profile
    return read_settings(
        profile.serve.options, profile.environment, context=context, gpu_bytes=smallest
    )


def _gpus(target: Target, observed: Observed) -> list[GpuMemory]:
    """Those that the server is to use; what our own server holds of them it will give back."""
    wanted = target.profile.gpus
    indices = wanted.devices if wanted.devices is not None else range(wanted.count)
    incumbent = observed.deployment.incumbent
    ours = observed.unit.active or (incumbent is not None and incumbent.running)

    def memory(gpu: Gpu) -> GpuMemory:
        return GpuMemory(gpu.index, gpu.memory_total, 0 if ours else gpu.memory_used)

    found = observed.system.gpus.gpus
    return [memory(gpu) for gpu in found if gpu.index in indices and gpu.memory_total]


def model_place(host: Host, target: Target, peers: Peers | None) -> AbstractContextManager[Place]:
    """Where the file can be read now: in the local source, on the host, or where it comes from.

    Raises:
        NotPlannedError: nowhere yet.
        CommandFailedError: it cannot be looked at on the host, and comes from no other.
    """
    spec = target.profile.model
    if not spec.serve.endswith(".gguf"):
        raise NotPlannedError(f"model.serve is {spec.serve!r}, no GGUF file")
    if spec.source is not None and exists(Place(str(spec.source / spec.serve))):
        return nullcontext(Place(str(spec.source / spec.serve)))
    there = Place(str(target.model_folder / spec.serve), host)
    peer = spec.source_host if peers is not None else None
    try:
        if exists(there):
            return nullcontext(there)
    except CommandFailedError:
        if peer is None:
            raise
    if peers is not None and peer is not None:
        return _PeerPlace(peers, peer, spec.source_path, spec.name, spec.serve)
    raise NotPlannedError(
        f"{there.label} is not there yet",
        "put the model's files there, or have `glm5-deploy model sync` bring them",
    )


class _PeerPlace(AbstractContextManager[Place]):
    """The file on the host that it will be copied from."""

    def __init__(
        self, peers: Peers, peer: str, folder: PurePosixPath | None, name: str, serve: str
    ) -> None:
        self._opened, self._folder, self._name, self._serve = peers(peer), folder, name, serve

    def __enter__(self) -> Place:
        peer = self._opened.__enter__()
        folder = self._folder or peer.root / "models" / self._name
        return Place(str(folder / self._serve), peer.host)

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(None, None, None)
