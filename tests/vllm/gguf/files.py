"""Tiny files of every form, and the weights that they hold by gguf-py's own reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from glm5_kernel.gguf.tiny.reference import checkpoint, read_tensors
from glm5_kernel.gguf.tiny.spec import TinySpec, make_spec
from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf


def make_files(
    folder: Path, *, split: int = 1, bare: bool = False, **choices: Any  # noqa: ANN401
) -> tuple[TinySpec, list[Path]]:  # fmt: skip
    """A tiny model in `folder`: its spec and its GGUF files."""
    spec = make_spec(choices.pop("variant", "glm5"), choices.pop("dims", "micro"), **choices)
    folder.mkdir(parents=True, exist_ok=True)
    paths = write_gguf(folder, spec, split, say=lambda _text: None)
    write_companions(folder, spec, bare=bare)
    return spec, paths


def expected(spec: TinySpec, paths: list[Path]) -> dict[str, torch.Tensor]:
    """What transformers would hold, in float32; gate and up of the experts apart."""
    found = {}
    for name, values in checkpoint(read_tensors(paths), spec.hp, spec.pattern).items():
        tensor = torch.from_numpy(values.copy())
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, 1)
            found[name.replace("gate_up_proj", "gate")] = gate
            found[name.replace("gate_up_proj", "up")] = up
        else:
            found[name.replace("mlp.experts.down_proj", "mlp.experts.down")] = tensor
    return found


def same(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    """Every weight that differs: neither equal, nor equal once rounded to bfloat16."""
    problems = [f"{name}: not there" for name in sorted(set(right) ^ set(found))]
    for name in sorted(set(right) & set(found)):
        one, other = found[name], right[name]
        if one.shape != other.shape:
            problems.append(f"{name}: {list(one.shape)}, right is {list(other.shape)}")
        elif not torch.equal(one, other) and not torch.equal(one, other.bfloat16().float()):
            problems.append(f"{name}: other values")
    return problems
