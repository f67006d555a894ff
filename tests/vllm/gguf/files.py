"""Tiny files of every form, and the weights that they hold by gguf-py's own reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from glm5_kernel.gguf.hyperparameters import Hyperparameters, hf_config
from glm5_kernel.gguf.tiny.codec import encode
from glm5_kernel.gguf.tiny.reference import Array, checkpoint, read_tensors
from glm5_kernel.gguf.tiny.spec import TinySpec, make_spec
from glm5_kernel.gguf.tiny.vocabulary import make_vocabulary, tokenizer_config, tokenizer_json
from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf

from tests.unit.gguf.support import V3, header_bytes, laid_out, metadata_of, tensors_of


def make_files(
    folder: Path, *, split: int = 1, bare: bool = False, **choices: Any  # noqa: ANN401
) -> tuple[TinySpec, list[Path]]:  # fmt: skip
    """A tiny model in `folder`: its spec and its GGUF files."""
    spec = make_spec(choices.pop("variant", "glm5"), choices.pop("dims", "micro"), **choices)
    folder.mkdir(parents=True, exist_ok=True)
    paths = write_gguf(folder, spec, split, say=lambda _text: None)
    write_companions(folder, spec, bare=bare)
    return spec, paths


V3_TINY = replace(
    V3, layers=3, mtp_layers=1, hidden=256, vocab=384, heads=4, q_lora=256, kv_lora=64, nope=32,
    rope=16, v=64, intermediate=512, dense_layers=1, experts=8, experts_used=2,
    moe_intermediate=512, groups=2, groups_used=1, context=2048,
)  # fmt: skip


def make_v3(folder: Path, quant: str, hp: Hyperparameters = V3_TINY) -> Path:
    """A tiny DeepSeek-V3 (`deepseek2`) with random weights, and its config.json."""
    rows = tensors_of(hp, quant)
    infos, _ = laid_out(rows)
    random = np.random.default_rng(0)
    data = header_bytes(metadata_of(hp), infos)
    for info in infos:
        begin = len(header_bytes(metadata_of(hp), infos)) + info.offset
        values = random.standard_normal(info.shape, dtype=np.float32)
        data += bytes(begin - len(data)) + encode(values, info.kind).tobytes()
    path = folder / "v3.gguf"
    path.write_bytes(data)
    config = hf_config(hp) | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = make_vocabulary(hp.vocab)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(hp.context)))
    return path


def draft_expected(hp: Hyperparameters, paths: list[Path]) -> dict[str, torch.Tensor]:
    """What a draft holds of the MTP block, under a checkpoint's names without the layer."""
    prefix = f"model.layers.{hp.layers}."
    tensors = read_tensors(paths)
    as_layer = replace(hp, layers=hp.blocks, mtp_layers=0)
    found = _apart(checkpoint(tensors, as_layer, None))
    own = {name.removeprefix(prefix): t for name, t in found.items() if name.startswith(prefix)}
    for role in ("eh_proj", "enorm", "hnorm", "shared_head_norm"):
        values = tensors[f"blk.{hp.layers}.nextn.{role}.weight"]
        own[f"{role.replace('head_', 'head.')}.weight"] = torch.from_numpy(values.copy())
    return own


def expected(spec: TinySpec, paths: list[Path]) -> dict[str, torch.Tensor]:
    """What transformers would hold, in float32; gate and up of the experts apart."""
    return _apart(checkpoint(read_tensors(paths), spec.hp, spec.pattern))


def expected_v3(path: Path, hp: Hyperparameters = V3_TINY) -> dict[str, torch.Tensor]:
    """The same of a DeepSeek-V3."""
    return _apart(checkpoint(read_tensors([path]), hp, None))


def _apart(weights: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Gate and up of the experts apart."""
    found = {}
    for name, values in weights.items():
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
