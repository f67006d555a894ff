"""How vLLM's layers hold and use weights that stay quantised.

The plan tells every type beforehand, so each layer allocates what it needs when it is made: fused
parts of unlike types apart, parts of one type together. Layers that the plan holds as floats are
vLLM's own unquantised ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import Parameter
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm_gguf_plugin.quantization import GGUFConfig

from glm5_kernel.gguf.compute import register_operations
from glm5_kernel.gguf.placement import DOWN, GATE, UP, canonical
from glm5_kernel.gguf.plan import ParameterPlan, Plan
from glm5_kernel.gguf.types import QuantType, row_bytes

register_operations()


@dataclass(frozen=True)
class Section:
    """Rows of a parameter that hold one part of a fused weight.

    Attributes:
        parameter: its name in the layer.
        part: number of the part.
        first: row that it begins at.
        rows: of this rank.
    """

    parameter: str
    part: int
    first: int
    rows: int


class PlannedGGUFConfig(GGUFConfig):
    """vLLM's quantisation config for a model whose plan of loading is known.

    A module that the plan does not know is an unquantised one.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:  # noqa: ANN401
        """vLLM asks this of every layer that may be quantised."""
        plan = self.plan.weight(canonical(prefix))
        quantised = plan is not None and plan.quantised
        if isinstance(layer, LinearBase):
            return QuantisedLinear(plan) if quantised and plan else UnquantizedLinearMethod()
        if isinstance(layer, VocabParallelEmbedding):
            if plan is None and self.plan.draft:
                return AbsentEmbedding()
            return QuantisedEmbedding(plan) if quantised and plan else UnquantizedEmbeddingMethod()
        if isinstance(layer, RoutedExperts):
            if quantised and plan:
                return QuantisedExperts(plan, layer.moe_config)
            return UnquantizedFusedMoEMethod(layer.moe_config)
        return None


def _empty(rows: Sequence[int], nbytes: int) -> Parameter:
    return Parameter(torch.empty(*rows, nbytes, dtype=torch.uint8), requires_grad=False)


def _groups(kinds: Sequence[QuantType], rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring parts of one type: first part, one past the last, rows."""
    first = 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[first]:
            yield first, index, sum(rows[first:index])
            first = index


class QuantisedLinear(LinearMethodBase):
    """A linear layer whose parts stay as the file has them."""

    def __init__(self, plan: ParameterPlan) -> None:
        self.plan = plan

    def create_weights(
        self,
        layer: Any,  # noqa: ANN401
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,  # noqa: ANN401
    ) -> None:
        """Allocate `qweight`, or `qweight_0`, … where types differ: uint8 [rows, bytes]."""
        del input_size, output_size, params_dtype, extra_weight_attrs
        kinds = self.plan.kinds
        if len(kinds) != len(output_partition_sizes):
            raise AssertionError(f"{self.plan.name}: {len(kinds)} parts for {layer}")
        groups = list(_groups(kinds, output_partition_sizes))
        sections, weights = [], []
        for number, (first, last, rows) in enumerate(groups):
            name = "qweight" if len(groups) == 1 else f"qweight_{number}"
            nbytes = row_bytes(kinds[first], input_size_per_partition)
            layer.register_parameter(name, _empty([rows], nbytes))
            weights.append((name, kinds[first].number))
            begin = 0
            for part in range(first, last):
                sections.append(Section(name, part, begin, output_partition_sizes[part]))
                begin += output_partition_sizes[part]
        layer.gguf_sections = tuple(sections)
        layer.gguf_weights = tuple(weights)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing is repacked."""

    def apply(
        self,
        layer: Any,  # noqa: ANN401
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[…, in] to […, out]."""
        flat = x.reshape(-1, x.shape[-1])
        parts = [
            torch.ops.vllm.glm5_gguf_linear(flat, getattr(layer, name), kind)
            for name, kind in layer.gguf_weights
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        out = out if bias is None else out + bias
        return out.view(*x.shape[:-1], out.shape[-1])


class QuantisedEmbedding(QuantisedLinear):
    """An embedding or a language model's head that stays as the file has it."""

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """As of a linear layer; `weight` is None, since vLLM's speculators ask for it."""
        super().create_weights(layer, *args, **kwargs)
        layer.register_parameter("weight", None)

    def embedding(self, layer: Any, ids: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Rows of the table in the model's dtype: [… , hidden]."""
        name, kind = layer.gguf_weights[0]
        found: torch.Tensor = torch.ops.vllm.glm5_gguf_embedding(
            ids, getattr(layer, name), kind, layer.params_dtype
        )
        return found


class AbsentEmbedding(UnquantizedEmbeddingMethod):
    """A draft's head before vLLM puts the model's own in its place: it takes no memory."""

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Allocate nothing."""
        del args, kwargs
        layer.register_parameter("weight", None)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """There is nothing to process."""


class QuantisedExperts(FusedMoEMethodBase):
    """Routed experts that stay as the file has them."""

    def __init__(self, plan: ParameterPlan, moe: Any) -> None:  # noqa: ANN401
        super().__init__(moe)
        self.plan = plan

    def create_weights(
        self,
        layer: Any,  # noqa: ANN401
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,  # noqa: ANN401
    ) -> None:
        """Allocate `w13_qweight` (or `w1_` and `w3_`) and `w2_qweight`: uint8 [experts, …]."""
        del params_dtype, extra_weight_attrs
        gate, up, down = self.plan.kinds
        width = intermediate_size_per_partition
        if gate == up:
            names = [("w13_qweight", gate, 2 * width)]
            sections = [
                Section("w13_qweight", GATE, 0, width),
                Section("w13_qweight", UP, width, width),
            ]
        else:
            names = [("w1_qweight", gate, width), ("w3_qweight", up, width)]
            sections = [
                Section("w1_qweight", GATE, 0, width),
                Section("w3_qweight", UP, 0, width),
            ]
        for name, kind, rows in names:
            layer.register_parameter(
                name, _empty([num_experts, rows], row_bytes(kind, hidden_size))
            )
        layer.register_parameter(
            "w2_qweight", _empty([num_experts, hidden_size], row_bytes(down, width))
        )
        layer.gguf_sections = (*sections, Section("w2_qweight", DOWN, 0, hidden_size))
        layer.gguf_gate_up = tuple((name, kind.number) for name, kind, _ in names)
        layer.gguf_down = down.number

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        """There are no scales beside the weights."""

    def apply(
        self,
        layer: Any,  # noqa: ANN401
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_shared: Any,  # noqa: ANN401
        **_more: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        """[tokens, hidden] through the chosen experts."""
        if layer.apply_router_weight_on_input:
            raise NotImplementedError("experts in GGUF: the router's weight on the input")
        found: torch.Tensor = torch.ops.vllm.glm5_gguf_experts(
            x,
            [getattr(layer, name) for name, _ in layer.gguf_gate_up],
            layer.w2_qweight,
            topk_weights,
            topk_ids,
            [kind for _, kind in layer.gguf_gate_up],
            layer.gguf_down,
            layer.activation.value,
        )
        return found
