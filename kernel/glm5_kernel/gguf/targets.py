"""Where in vLLM's model each part of the plan goes on this rank.

The layers themselves say how they are cut (their rank and size), so that what is read agrees with
what vLLM computes, whatever the parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from glm5_kernel.gguf.errors import GgufError, listed
from glm5_kernel.gguf.filling import Fill
from glm5_kernel.gguf.methods import Section
from glm5_kernel.gguf.placement import DOWN, GATE, UP, canonical
from glm5_kernel.gguf.plan import ParameterPlan, Piece, Plan
from glm5_kernel.gguf.slicing import Shape, Slice, cut_columns, cut_rows, shape_of, whole

DERIVED = ".mla_attn."
"""Parameters that vLLM makes of kv_b_proj once it is loaded."""


@dataclass
class Targets:
    """What is filled, and what is not.

    Attributes:
        fills: what goes where.
        used: parameters of the plan that found their place.
        unknown: parameters of the model that no tensor fills.
        problems: parts that do not fit their parameter.
    """

    fills: list[Fill] = field(default_factory=list)
    used: set[tuple[str, str]] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_targets(model: torch.nn.Module, plan: Plan, *, all_layers: bool = True) -> Targets:
    """Match the parameters of a model with the plan, each with this rank's part.

    Args:
        model: vLLM's, made but not loaded.
        plan: what the files hold for it.
        all_layers: whether the model has all layers; False on a stage of pipeline parallelism.

    Raises:
        GgufError: parameters that nothing fills, tensors that have no place in the model, or parts
            that do not fit; all of them in one message.
    """
    found = Targets()
    for name, parameter in model.named_parameters():
        if DERIVED in name:
            continue
        _match(model, name, parameter, plan, found, all_layers)
    left = [each for key, each in plan.parameters.items() if key not in found.used]
    problems = list(found.problems)
    if found.unknown:
        problems.append(
            f"{len(found.unknown)} parameters of vLLM's model are filled by no tensor of the "
            f"file: {listed(found.unknown, 20)}"
        )
    if left and all_layers:
        names = [piece.name for each in left for piece in each.pieces]
        problems.append(
            f"{len(names)} tensors of the file have no place in vLLM's model: {listed(names, 20)}"
        )
    if problems:
        raise GgufError(problems)
    return found


def _match(
    model: torch.nn.Module,
    name: str,
    parameter: torch.Tensor,
    plan: Plan,
    found: Targets,
    all_layers: bool,
) -> None:
    path, leaf = name.rsplit(".", 1)
    module = model.get_submodule(path)
    held = "weight" if "weight" in leaf else leaf
    key = (canonical(path), held)
    part = plan.parameters.get(key)
    if part is None:
        # vLLM gives a draft the model's table, but not across stages of pipeline parallelism.
        if not (plan.draft and all_layers and key == ("model.embed_tokens", "weight")):
            found.unknown.append(name)
        return
    found.used.add(key)
    try:
        found.fills += _fills(module, leaf, parameter.data, part)
    except _MisfitError as error:
        found.problems.append(f"{name} {list(parameter.shape)}: {error}")


class _MisfitError(Exception):
    """A part that does not fit its parameter."""


def _fills(
    module: torch.nn.Module, leaf: str, data: torch.Tensor, plan: ParameterPlan
) -> Iterator[Fill]:
    if isinstance(module, RoutedExperts):
        return _experts(module, leaf, data, plan)
    if isinstance(module, VocabParallelEmbedding):
        return _vocabulary(module, data, plan)
    if isinstance(module, LinearBase) and "weight" in leaf:
        return _linear(module, leaf, data, plan)
    return _other(data, plan)


def _linear(
    module: LinearBase, leaf: str, data: torch.Tensor, plan: ParameterPlan
) -> Iterator[Fill]:
    for section in _sections(module, leaf, plan):
        pieces = plan.parts[section.part]
        shape = _shape(pieces)
        part = whole(shape)
        if isinstance(module, RowParallelLinear):
            part = cut_columns(shape, module.tp_rank, module.tp_size)
        elif isinstance(module, ColumnParallelLinear):
            part = cut_rows(shape, module.tp_rank, module.tp_size)
        rows = data[section.first : section.first + section.rows]
        yield _fill(pieces, rows.unsqueeze(0), part, plan)


def _sections(module: LinearBase, leaf: str, plan: ParameterPlan) -> Iterator[Section]:
    known = getattr(module, "gguf_sections", None)
    if known is not None:
        yield from (section for section in known if section.parameter == leaf)
        return
    sizes = module.output_partition_sizes
    if len(sizes) != len(plan.parts):
        raise _MisfitError(f"{len(sizes)} parts in vLLM, {len(plan.parts)} in the plan")
    first = 0
    for part, rows in enumerate(sizes):
        yield Section(leaf, part, first, rows)
        first += rows


def _shape(pieces: tuple[Piece, ...]) -> Shape:
    """Of one tensor; of k_b and v_b, of the kv_b_proj that they make."""
    shapes = [shape_of(piece.info) for piece in pieces]
    if len(shapes) == 1:
        return shapes[0]
    k, v = shapes
    values = k.rows * k.columns + v.rows * v.columns
    return Shape(1, values // v.columns, v.columns)


def _vocabulary(
    module: VocabParallelEmbedding, data: torch.Tensor, plan: ParameterPlan
) -> Iterator[Fill]:
    pieces = plan.parts[0]
    shape = _shape(pieces)
    indices = module.shard_indices
    rows = (indices.org_vocab_start_index, min(indices.org_vocab_end_index, shape.rows))
    count = max(0, rows[1] - rows[0])
    data[count:].zero_()
    if count:
        part = Slice((rows[0], rows[0] + count), (0, shape.columns))
        yield _fill(pieces, data[:count].unsqueeze(0), part, plan)


def _experts(
    module: RoutedExperts, leaf: str, data: torch.Tensor, plan: ParameterPlan
) -> Iterator[Fill]:
    parallel = module.moe_config.moe_parallel_config
    if parallel.use_ep:
        raise _MisfitError(
            "experts in GGUF are shared by tensor parallelism, not by expert parallelism"
        )
    for section in _expert_sections(leaf, data, getattr(module, "gguf_sections", None)):
        pieces = plan.parts[section.part]
        shape = shape_of(pieces[0].info, stacked=True)
        cut = cut_columns if section.part == DOWN else cut_rows
        part = cut(shape, parallel.tp_rank, parallel.tp_size)
        rows = data[:, section.first : section.first + section.rows]
        yield _fill(pieces, rows, part, plan, stacked=True)


def _expert_sections(
    leaf: str, data: torch.Tensor, known: tuple[Section, ...] | None
) -> Iterator[Section]:
    if known is not None:
        yield from (section for section in known if section.parameter == leaf)
    elif leaf.startswith("w13"):
        width = data.shape[1] // 2
        yield Section(leaf, GATE, 0, width)
        yield Section(leaf, UP, width, width)
    elif leaf.startswith("w2"):
        yield Section(leaf, DOWN, 0, data.shape[1])
    else:
        raise _MisfitError("no known parameter of experts")


def _other(data: torch.Tensor, plan: ParameterPlan) -> Iterator[Fill]:
    """Norms, biases, plain linear layers: whole on every rank."""
    if len(plan.parts) != 1:
        raise _MisfitError(f"{len(plan.parts)} parts in the plan, but the layer is not fused")
    pieces = plan.parts[0]
    shape = _shape(pieces)
    view = data.view(1, 1, -1) if data.ndim == 1 else data.unsqueeze(0)
    yield _fill(pieces, view, whole(shape), plan)


def _fill(
    pieces: tuple[Piece, ...],
    target: torch.Tensor,
    part: Slice,
    plan: ParameterPlan,
    *,
    stacked: bool = False,
) -> Fill:
    """A fill, once the rank's part has been seen to fit."""
    count = shape_of(pieces[0].info, stacked=stacked).count
    width = part.width
    if plan.quantised:
        kind = pieces[0].kind
        width = width // kind.block * kind.size
    right = (count, part.height, width)
    if tuple(target.shape) != right:
        names = ", ".join(piece.name for piece in pieces)
        raise _MisfitError(
            f"{names}: this rank's part is {list(right)}, vLLM's {list(target.shape)}"
        )
    return Fill(pieces, target, part, stacked)
