"""The memory of one GPU, planned: weights, workspace, graphs, and the KV cache that is left.

vLLM takes a share of the GPU, runs the largest batch once to see what it needs, and gives the rest
to the KV cache (v1/worker/gpu_worker.py, `determine_available_memory`). This adds up the same,
without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glm5_deploy.memory import constants as known
from glm5_deploy.memory.settings import Settings


@dataclass(frozen=True)
class ModelShape:
    """What a model's header says, as far as memory goes.

    Args:
        tp: GPUs that share the weights.
        weights: bytes on each of them.
        kv: bytes of KV cache for a token on each GPU, by cache dtype: ``bf16``, ``fp8``.
        possible: numbers of GPUs that the weights can be cut among, with the bytes on each.
        indexer_row: bytes of an indexer's key with its scale; 0 without an indexer.
        topk: tokens that the indexer selects; 0 without one.
        context: the longest that it was made for.
        rope: dimensions of a head that carry its position.
    """

    tp: int
    weights: int
    kv: dict[str, int]
    possible: dict[int, int]
    hidden: int
    heads: int
    head_values: int
    vocab: int
    intermediate: int
    moe_intermediate: int
    experts_used: int
    context: int
    indexer_row: int
    topk: int
    rope: int = 64

    def on(self, tp: int) -> ModelShape:
        """The same, cut among another number of GPUs."""
        return replace(self, tp=tp, weights=self.possible[tp])


@dataclass(frozen=True)
class GpuMemory:
    """One GPU.

    Args:
        total: bytes that nvidia-smi tells.
        used: bytes that others hold.
    """

    index: int
    total: int
    used: int = 0

    @property
    def usable(self) -> int:
        """Bytes that CUDA has."""
        return int(self.total * known.CUDA_SHARE)


@dataclass(frozen=True)
class MemoryPlan:
    """One GPU's memory in bytes, and what fits into what is left.

    Args:
        limit: what vLLM may take of it.
        weights: with what is made with them: the indexer's buffer, the table of positions, the
            kernels' scratch.
        workspace: the largest batch's, at its peak.
        kv: for the KV cache; negative where the rest does not fit.
        kv_tokens: tokens of context that it holds.
        longest: tokens of the longest context that fits; 0 for none.
        sequences: requests of the full context at once.
        problems: why it does not fit, each with what would make it fit.
    """

    settings: Settings
    model: ModelShape
    gpu: GpuMemory
    limit: int
    weights: int
    workspace: int
    graphs: int
    other: int
    kv: int
    kv_tokens: int
    longest: int
    sequences: float
    problems: tuple[tuple[str, str], ...]

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def most(self) -> int:
        """Tokens of the longest context that vLLM takes, whatever the memory."""
        return self.settings.context if self.settings.stretched else self.model.context


def workspace(model: ModelShape, settings: Settings) -> int:
    """Bytes at the peak of the largest batch, from its largest step.

    The pool that all layers share is counted with each step that runs while it is held.
    """
    tokens, tp = settings.batched_tokens, model.tp
    pool = known.INDEXER_ROWS * settings.context * model.indexer_row
    states = known.HIDDEN_COPIES * tokens * model.hidden * 2
    indexer = known.INDEXER_LOGITS if model.indexer_row else 0
    prefill = _chunk_rows(model, settings) * model.heads // tp * model.head_values * 2
    experts = tokens * model.experts_used * (model.hidden + 3 * model.moe_intermediate // tp) * 2
    dense = tokens * 3 * model.intermediate // tp * 2
    sampler = known.SAMPLER_COPIES * settings.sequences * model.vocab * 4
    return pool + max(states + max(indexer, prefill, experts, dense), sampler)


def _chunk_rows(model: ModelShape, settings: Settings) -> int:
    """Rows of context that a prefill by dense attention expands at once."""
    paged = settings.sequences * settings.block
    most = [max(8 * settings.context, 4 * paged), known.CHUNK_ROWS]
    most += [settings.sequences * model.topk] if model.topk else []
    return max(min(most), paged)


def plan(
    model: ModelShape, settings: Settings, gpus: Sequence[GpuMemory], there: int | None = None
) -> MemoryPlan:
    """Plan for the GPU that has least: all hold the same.

    Args:
        gpus: that the server is to use.
        there: how many the host has; default: no others.

    Raises:
        ValueError: no GPU is given.
    """
    gpu = min(gpus, key=lambda each: each.usable - each.used)
    made = _without_problems(model, settings, gpu)
    return replace(made, problems=tuple(_problems(made, gpus, there or len(gpus))))


def _without_problems(model: ModelShape, settings: Settings, gpu: GpuMemory) -> MemoryPlan:
    limit = math.ceil(gpu.usable * settings.utilization)
    longest = _longest(model, settings, limit)
    if settings.auto and 0 < longest < settings.context:
        settings = replace(settings, context=longest)
    parts = _parts(model, settings)
    kv = _kv(limit, parts, settings)
    tokens = _tokens(kv, model, settings)
    weights, work, graphs, other = parts
    return MemoryPlan(
        settings, model, gpu, limit, weights, work, graphs, other, kv, tokens, longest,
        round(tokens / settings.context, 2), (),
    )  # fmt: skip


def _parts(model: ModelShape, settings: Settings) -> tuple[int, int, int, int]:
    """Weights, workspace, graphs and the rest."""
    # The indexer's buffer, and sines and cosines of all positions: made with the model.
    tables = settings.batched_tokens * model.topk * 4 + model.context * model.rope * 2
    graphs = 0 if settings.eager else known.GRAPHS
    made = model.weights + tables + _scratch(model, settings)
    return made, workspace(model, settings), graphs, known.DRIVER


def _scratch(model: ModelShape, settings: Settings) -> int:
    """What glm5-kernel keeps for sparse attention and top-k."""
    if not model.topk:
        return 0
    tokens = min(settings.batched_tokens, known.INVARIANT_TOKENS) if settings.invariant else 0
    return known.KERNELS + tokens * (model.heads // model.tp) * known.INVARIANT_HEAD


def _kv(limit: int, parts: tuple[int, ...], settings: Settings) -> int:
    """What is left for the KV cache, or what is fixed of it."""
    left = limit - sum(parts)
    return min(left, settings.kv_bytes) if settings.kv_bytes else left


def _tokens(kv: int, model: ModelShape, settings: Settings) -> int:
    page = model.kv[settings.kv_dtype] * settings.block
    return max(kv, 0) // page * settings.block


def _longest(model: ModelShape, settings: Settings, limit: int) -> int:
    """The longest context of which one request fits; a longer one needs more workspace too."""

    def fits(context: int) -> bool:
        wanted = replace(settings, context=context)
        kv = _kv(limit, _parts(model, wanted), wanted)
        return _tokens(kv, model, wanted) >= context

    most = max(model.context, settings.context) if settings.stretched else model.context
    low, high = 0, most // settings.block
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * settings.block) else (low, middle - 1)
    return low * settings.block


# --- what does not fit, and what would -----------------------------------------------------------


def _problems(made: MemoryPlan, gpus: Sequence[GpuMemory], there: int) -> list[tuple[str, str]]:
    busy = [*_busy(made, gpus), *_beyond(made)]
    if made.kv <= 0:
        need = made.weights + made.workspace + made.graphs + made.other
        text = (
            f"weights, workspace and graphs take {_gib(need)} GiB of each GPU, and vLLM may take"
            f" {_gib(made.limit)} ({made.settings.utilization:g} of {_gib(made.gpu.usable)})"
        )
        return [*busy, (text, _remedy(made, there))]
    if made.kv_tokens < made.settings.context:
        need = made.model.kv[made.settings.kv_dtype] * made.settings.context
        text = (
            f"a context of {made.settings.context} tokens takes {_gib(need)} GiB of KV cache on"
            f" each GPU, and {_gib(made.kv)} GiB is left; {made.longest} tokens fit"
        )
        return [*busy, (text, _remedy(made, there))]
    return busy


def _beyond(made: MemoryPlan) -> list[tuple[str, str]]:
    """vLLM refuses a longer context than the model's own."""
    context, own = made.settings.context, made.model.context
    if context <= own or made.settings.stretched:
        return []
    text = f"max-model-len {context} is more than the model was made for, {own} tokens"
    shorter = _shorter(made)
    return [(text, _told(shorter) if shorter else f"max-model-len: {own} at most")]


def _busy(made: MemoryPlan, gpus: Sequence[GpuMemory]) -> list[tuple[str, str]]:
    """vLLM refuses to start where less is free than it may take."""
    held: dict[str, list[GpuMemory]] = {}
    for gpu in gpus:
        free = _free(gpu, made.model.tp)
        wanted = math.ceil(gpu.usable * made.settings.utilization)
        if free < wanted and (gpu.used or free > 0):
            said = f"{_gib(free)} GiB free, and vLLM wants {_gib(wanted)}"
            held.setdefault(said, []).append(gpu)
    if not held:
        return []
    text = "; ".join(
        f"GPU {', '.join(str(gpu.index) for gpu in some)} {'have' if some[1:] else 'has'} {said}"
        for said, some in held.items()
    )
    short = [gpu for some in held.values() for gpu in some]
    share = min(_most_share(gpu, made.model.tp) for gpu in short)
    if not any(gpu.used for gpu in short):
        return [(text, f"set gpu-memory-utilization: {share:g}, or less")]
    lower = replace(made.settings, utilization=share)
    fits = share > 0 and _holds(_without_problems(made.model, lower, made.gpu))
    other = f"set gpu-memory-utilization: {share:g}" if fits else "choose others with gpus.devices"
    return [(text, f"end what holds their memory, or {other}")]


def _holds(made: MemoryPlan) -> bool:
    return made.kv > 0 and made.kv_tokens >= made.settings.context <= made.most


def _remedy(made: MemoryPlan, there: int) -> str:
    """The changes that would make it fit, each tried; what is cheapest to do comes first."""
    told = [text for text, other in _candidates(made, there) if _holds(other)]
    told += _shorter(made)
    if told:
        return _told(told[:4])
    return "use more or larger GPUs, or a file of a smaller quantisation"


def _shorter(made: MemoryPlan) -> list[str]:
    """The longest context that fits, as a change; none where none does."""
    settings, beside = _beside_own(made.settings, made.gpu, made.model.tp)
    longest = _longest(made.model, settings, math.ceil(made.gpu.usable * settings.utilization))
    return [f"max-model-len: {longest}{beside}"] if longest >= settings.block else []


def _beside_own(settings: Settings, gpu: GpuMemory, tp: int) -> tuple[Settings, str]:
    """The same with a share that fits beside vLLM's own context and NCCL, where it does not; and
    how that is told. What others hold of the GPU is another problem.
    """
    empty = replace(gpu, used=0)
    if math.ceil(gpu.usable * settings.utilization) <= _free(empty, tp):
        return settings, ""
    share = _most_share(empty, tp)
    return replace(settings, utilization=share), f" with gpu-memory-utilization: {share:g}"


def _told(changes: list[str]) -> str:
    begin = "this makes it fit" if len(changes) == 1 else "any of these makes it fit"
    return f"{begin}: {'; '.join(changes)}"


def _free(gpu: GpuMemory, tp: int) -> int:
    """Bytes that are free when vLLM looks, its own context and NCCL already loaded."""
    own = known.CONTEXT + (known.COLLECTIVES if tp > 1 else 0)
    return gpu.usable - gpu.used - own


def _most_share(gpu: GpuMemory, tp: int) -> float:
    """The largest share that vLLM would be given, of what others leave."""
    free = math.floor(_free(gpu, tp) / gpu.usable * 100) / 100
    return max(min(free, known.MOST_UTILIZATION), 0.0)


def _candidates(made: MemoryPlan, count: int) -> list[tuple[str, MemoryPlan]]:
    """One change each, planned."""
    settings, model = made.settings, made.model
    single: list[tuple[str, Settings, ModelShape]] = []
    if settings.kv_dtype != "fp8" and model.topk:
        smaller = replace(settings, kv_dtype="fp8")
        single.append(("kv-cache-dtype: fp8_ds_mla", smaller, model))
    if settings.kv_bytes:
        free = replace(settings, kv_bytes=0)
        single.append(("kv-cache-memory-bytes: null", free, model))
    share = _most_share(made.gpu, model.tp)
    if settings.utilization < share:
        most = replace(settings, utilization=share)
        single.append((f"gpu-memory-utilization: {share:g}", most, model))
    fewer = replace(settings, batched_tokens=2048, sequences=min(settings.sequences, 64))
    if settings.batched_tokens > 2048:
        text = f"max-num-batched-tokens: 2048 with max-num-seqs: {fewer.sequences}"
        single.append((text, fewer, model))
    more = [tp for tp in sorted(model.possible) if model.tp < tp <= count]
    single += [
        (f"tensor-parallel-size and gpus.count: {tp}", settings, model.on(tp)) for tp in more
    ]
    found = []
    for text, wanted, shape in single:
        possible, beside = _beside_own(wanted, made.gpu, shape.tp)
        found.append((f"{text}{beside}", _without_problems(shape, possible, made.gpu)))
    return found


def _gib(size: int) -> str:
    return f"{size / known.GIB:.1f}"
