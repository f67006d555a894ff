"""GGUF headers written by hand, and the tensors of a full GLM-5, for tests without gguf-py."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glm5_kernel.gguf.hyperparameters import Hyperparameters, Indexer
from glm5_kernel.gguf.names import required, weight_of
from glm5_kernel.gguf.reader import TensorInfo
from glm5_kernel.gguf.types import BY_NAME, TYPES, tensor_bytes

GLM5 = Hyperparameters(
    architecture="glm-dsa", layers=78, mtp_layers=1, hidden=6144, vocab=154880, heads=64,
    q_lora=2048, kv_lora=512, nope=192, rope=64, v=256, intermediate=12288, dense_layers=3,
    experts=256, experts_used=8, shared_experts=1, moe_intermediate=2048, expert_scale=2.5,
    expert_norm=True, gating="sigmoid", groups=1, groups_used=1, eps=1e-5, rope_theta=1e6,
    context=202752, indexer=Indexer(32, 128, 2048),
)  # fmt: skip

SMALL = replace(
    GLM5, layers=3, mtp_layers=1, hidden=512, vocab=512, heads=4, q_lora=256, intermediate=512,
    dense_layers=1, experts=8, experts_used=2, moe_intermediate=256, context=8192,
)  # fmt: skip

V3 = replace(
    GLM5, architecture="deepseek2", layers=61, mtp_layers=0, hidden=7168, vocab=129280, heads=128,
    q_lora=1536, nope=128, v=128, intermediate=18432, groups=8, groups_used=4, eps=1e-6,
    rope_theta=10000.0, context=163840, indexer=None,
)  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_bytes(value: Any) -> bytes:  # noqa: ANN401
    """A value with its type: bool, whole number, float, string or a list of one kind of them."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<IQ", 10, value) if value >= 1 << 32 else struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    items = [value_bytes(item) for item in value] or [struct.pack("<I", 4)]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(value)) + b"".join(
        item[4:] for item in items
    )  # fmt: skip


def header_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A header up to where data begin."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    out += b"".join(text(key) + value_bytes(value) for key, value in metadata.items())
    for info in tensors:
        out += text(info.name) + struct.pack("<I", len(info.ne))
        out += struct.pack(f"<{len(info.ne)}Q", *info.ne)
        out += struct.pack("<IQ", info.number, info.offset)
    return out + bytes(-len(out) % alignment)


def laid_out(
    tensors: Sequence[tuple[str, tuple[int, ...], int]], alignment: int = 32
) -> tuple[list[TensorInfo], int]:
    """Tensors one after the other, and the bytes of their data."""
    infos, offset, end = [], 0, 0
    for name, ne, number in tensors:
        infos.append(TensorInfo(name, ne, number, offset))
        end = offset + (tensor_bytes(TYPES[number], ne) if number in TYPES else 0)
        offset = -(-end // alignment) * alignment
    return infos, end


def metadata_of(hp: Hyperparameters, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """What llama.cpp's converter would write."""
    prefix = hp.architecture
    metadata: dict[str, Any] = {
        "general.architecture": prefix,
        f"{prefix}.block_count": hp.blocks,
        f"{prefix}.context_length": hp.context,
        f"{prefix}.embedding_length": hp.hidden,
        f"{prefix}.feed_forward_length": hp.intermediate,
        f"{prefix}.attention.head_count": hp.heads,
        f"{prefix}.attention.head_count_kv": 1,
        f"{prefix}.rope.freq_base": hp.rope_theta,
        f"{prefix}.attention.layer_norm_rms_epsilon": hp.eps,
        f"{prefix}.expert_used_count": hp.experts_used,
        f"{prefix}.leading_dense_block_count": hp.dense_layers,
        f"{prefix}.vocab_size": hp.vocab,
        f"{prefix}.attention.q_lora_rank": hp.q_lora,
        f"{prefix}.attention.kv_lora_rank": hp.kv_lora,
        f"{prefix}.attention.key_length": hp.kv_lora + hp.rope,
        f"{prefix}.attention.value_length": hp.kv_lora,
        f"{prefix}.attention.key_length_mla": hp.head,
        f"{prefix}.attention.value_length_mla": hp.v,
        f"{prefix}.expert_feed_forward_length": hp.moe_intermediate,
        f"{prefix}.expert_count": hp.experts,
        f"{prefix}.expert_shared_count": hp.shared_experts,
        f"{prefix}.expert_weights_scale": hp.expert_scale,
        f"{prefix}.expert_weights_norm": hp.expert_norm,
        f"{prefix}.expert_gating_func": 2,
        f"{prefix}.expert_group_count": hp.groups,
        f"{prefix}.expert_group_used_count": hp.groups_used,
        f"{prefix}.rope.dimension_count": hp.rope,
    }
    if hp.mtp_layers:
        metadata[f"{prefix}.nextn_predict_layers"] = hp.mtp_layers
    if hp.indexer is not None:
        metadata[f"{prefix}.attention.indexer.head_count"] = hp.indexer.heads
        metadata[f"{prefix}.attention.indexer.key_length"] = hp.indexer.head_dim
        metadata[f"{prefix}.attention.indexer.top_k"] = hp.indexer.topk
    if hp.indexer_types is not None:
        types = [kind == "F" for kind in hp.indexer_types]
        metadata[f"{prefix}.attention.indexer.types"] = types
    return metadata | more


def tensors_of(
    hp: Hyperparameters, quant: str = "Q8_0", kinds: Mapping[str, str] | None = None
) -> list[tuple[str, tuple[int, ...], int]]:
    """Every tensor of a model: norms, router and biases in F32, `kinds` by role, else `quant`."""
    names = list(required(hp, None))
    for layer in range(hp.blocks):
        names += [f"blk.{layer}.attn_k_b.weight", f"blk.{layer}.attn_v_b.weight"]
        if layer >= hp.dense_layers:
            names.append(f"blk.{layer}.exp_probs_b.bias")
    rows = []
    for name in names:
        weight = weight_of(name, hp)
        assert weight is not None
        ne = weight.ne[0]
        flat = len(ne) == 1 or weight.kind == "router"
        chosen = (kinds or {}).get(weight.role, "F32" if flat else quant)
        if ne[0] % BY_NAME[chosen].block:
            chosen = "Q8_0"
        rows.append((name, ne, BY_NAME[chosen].number))
    return rows


def write_model(
    folder: Path,
    hp: Hyperparameters,
    *,
    quant: str = "Q8_0",
    kinds: Mapping[str, str] | None = None,
    split: int = 1,
    **metadata: Any,  # noqa: ANN401
) -> list[Path]:
    """A model of sparse files: right headers, data that take no room. First shard: metadata only,
    where it is split."""
    tensors = tensors_of(hp, quant, kinds)
    if split == 1:
        return [write_sparse(folder / "m.gguf", metadata_of(hp, **metadata), tensors)]
    per = -(-len(tensors) // (split - 1))
    paths = []
    for number in range(split):
        own = tensors[(number - 1) * per : number * per] if number else []
        about = {
            "split.no": number, "split.count": split, "split.tensors.count": len(tensors)
        }  # fmt: skip
        path = folder / f"m-{number + 1:05}-of-{split:05}.gguf"
        head = about | (metadata_of(hp, **metadata) if number == 0 else {})
        paths.append(write_sparse(path, head, own))
    return paths


def write_sparse(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], int]]
) -> Path:
    infos, size = laid_out(tensors)
    header = header_bytes(metadata, infos)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    return path
