"""What is loaded from where: every parameter of vLLM's model and the tensors that fill it.

Pure: built from headers alone, the same on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from glm5_kernel.gguf.errors import GgufError, listed
from glm5_kernel.gguf.hyperparameters import Hyperparameters, IndexerPattern
from glm5_kernel.gguf.layout import Placed, place, possible_tps, tp_problems
from glm5_kernel.gguf.names import tensor_problems
from glm5_kernel.gguf.placement import Spot, spot_of
from glm5_kernel.gguf.reader import TensorInfo
from glm5_kernel.gguf.shards import Located, Model
from glm5_kernel.gguf.types import QuantType


@dataclass(frozen=True)
class Piece:
    """A tensor of a file that becomes (part of) a parameter.

    Attributes:
        placed: what it is and what becomes of it.
        located: where it lies.
    """

    placed: Placed
    located: Located

    @property
    def name(self) -> str:
        return self.located.info.name

    @property
    def info(self) -> TensorInfo:
        return self.located.info

    @property
    def kind(self) -> QuantType:
        return self.info.kind

    @property
    def role(self) -> str:
        return self.placed.weight.role


@dataclass(frozen=True)
class ParameterPlan:
    """A parameter of vLLM's model and what fills it.

    Attributes:
        module: canonical name of its module (`placement`).
        leaf: its name there: `weight`, `bias`, …
        parts: of fused weights in order; a part of kv_b_proj is k_b and v_b together.
        quantised: whether it is held as the file has it.
    """

    module: str
    leaf: str
    parts: tuple[tuple[Piece, ...], ...]
    quantised: bool

    @property
    def name(self) -> str:
        return f"{self.module}.{self.leaf}"

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for part in self.parts for piece in part)

    @property
    def kinds(self) -> tuple[QuantType, ...]:
        """The type of each part that is held quantised."""
        return tuple(part[0].kind for part in self.parts)


@dataclass(frozen=True)
class Plan:
    """What one model (the target, or the draft of speculative decoding) takes from the files.

    Attributes:
        paths: the files.
        hp: hyperparameters.
        draft: whether this is the MTP draft.
        parameters: by module and leaf.
        left_out: names of tensors that are not loaded, with the reason.
    """

    paths: tuple[str, ...]
    hp: Hyperparameters
    draft: bool
    parameters: Mapping[tuple[str, str], ParameterPlan]
    left_out: Mapping[str, str]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for each in self.parameters.values() for piece in each.pieces)

    def weight(self, module: str) -> ParameterPlan | None:
        """The plan for a module's weight."""
        return self.parameters.get((module, "weight"))


OF_TARGET = "the model's own, not the draft's"
SHARED_WITH_TARGET = "vLLM gives the draft the model's own"
NO_INDEXER = "attention is dense"


def make_plan(
    model: Model,
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    *,
    draft: bool = False,
    tp: int = 1,
    indexer: bool = True,
) -> Plan:
    """Plan the loading of a model.

    Args:
        model: its files.
        hp: its hyperparameters.
        pattern: which layers run their own indexer; None without one.
        draft: plan the MTP draft instead of the model itself.
        tp: ranks that share each weight.
        indexer: False where vLLM's model is built without one (dense attention).

    Raises:
        GgufError: tensors are missing, of wrong dimensions or unknown, the model cannot be cut so
            (with the numbers that work), or there is no MTP block for a draft; all is told.
    """
    infos = {name: located.info for name, located in model.tensors.items()}
    placed = place(infos.values(), hp, pattern, mtp=draft)
    problems = [*tensor_problems(infos, hp, pattern, mtp=draft), *_cut(placed, hp, tp)]
    if draft and not hp.mtp_layers:
        problems.append(
            f"{model.paths[0]}: there is no MTP block (nextn_predict_layers), so speculative "
            "decoding by MTP is not possible; leave it out"
        )
    if problems:
        raise GgufError(problems)
    left_out = {
        each.weight.name: reason for each in placed if (reason := _reason(each, hp, draft, indexer))
    }
    kept = [each for each in placed if each.weight.name not in left_out]
    return Plan(model.paths, hp, draft, _parameters(kept, model.tensors, hp), left_out)


def _cut(placed: Iterable[Placed], hp: Hyperparameters, tp: int) -> list[str]:
    held = tuple(placed)
    problems = tp_problems(held, hp, tp)
    if not problems:
        return []
    works = possible_tps(held, hp)
    return [
        *problems,
        f"tensor parallelism {tp} is not possible with this file; {listed(works, 16)} are, "
        f"at most {max(works, default=1)}",
    ]


def _reason(each: Placed, hp: Hyperparameters, draft: bool, indexer: bool) -> str:
    """Why a tensor is not loaded; empty where it is."""
    if each.action == "skipped":
        return each.note
    if each.weight.kind == "indexer" and not indexer:
        return NO_INDEXER
    if not draft:
        return ""
    if each.weight.layer is None or each.weight.layer < hp.layers:
        return OF_TARGET
    shared = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")
    return SHARED_WITH_TARGET if each.weight.role in shared else ""


def _parameters(
    placed: Iterable[Placed], tensors: Mapping[str, Located], hp: Hyperparameters
) -> dict[tuple[str, str], ParameterPlan]:
    spots: dict[tuple[str, str], dict[int, list[Piece]]] = defaultdict(lambda: defaultdict(list))
    for each in placed:
        spot: Spot = spot_of(each.weight, hp)
        parts = spots[spot.module, spot.leaf]
        parts[spot.part].append(Piece(each, tensors[each.weight.name]))
    return {key: _parameter(*key, parts) for key, parts in spots.items()}


def _parameter(module: str, leaf: str, parts: Mapping[int, list[Piece]]) -> ParameterPlan:
    ordered = tuple(
        tuple(sorted(parts[index], key=lambda piece: piece.role)) for index in sorted(parts)
    )
    actions = {piece.placed.action for part in ordered for piece in part}
    quantised = actions == {"kept"}
    if "kept" in actions and not quantised:
        raise AssertionError(f"{module}.{leaf}: held quantised in part only")
    if sorted(parts) != list(range(len(parts))):
        raise AssertionError(f"{module}.{leaf}: has parts {sorted(parts)}")
    return ParameterPlan(module, leaf, ordered, quantised)
