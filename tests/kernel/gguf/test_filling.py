"""Reading, cutting, decoding and placing tensors, without vLLM."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from glm5_kernel.gguf.decoding import decode_rows
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.experts import apply_experts
from glm5_kernel.gguf.filling import Fill, fill_all
from glm5_kernel.gguf.kv_b import assemble, heads_of, k_rows, v_rows
from glm5_kernel.gguf.plan import ParameterPlan, Plan, make_plan
from glm5_kernel.gguf.progress import Progress
from glm5_kernel.gguf.shards import open_model
from glm5_kernel.gguf.slicing import Shape, Slice, cut_columns, cut_rows, shape_of, whole
from glm5_kernel.gguf.staging import OpenFiles
from glm5_kernel.gguf.tiny.codec import decode, encode
from glm5_kernel.gguf.tiny.recipes import PLAIN
from glm5_kernel.gguf.tiny.reference import kv_b_proj, read_tensors
from glm5_kernel.gguf.types import BY_NAME

from tests.kernel.gguf.models import made

TYPES = sorted({*(quant.upper() for quant in PLAIN), "MXFP4"})


def plan_of(**choices: object) -> tuple[Plan, dict[str, np.ndarray]]:
    spec, _, paths = made(**choices)  # type: ignore[arg-type]
    return make_plan(open_model(paths[0]), spec.hp, spec.pattern), read_tensors(paths)


def fill(plan: Plan, fills: Sequence[Fill], chunk: int) -> int:
    return fill_all(fills, plan.paths, plan.hp, lambda total: Progress(1, total, None), chunk=chunk)


@pytest.mark.parametrize("name", TYPES)
def test_decoding_is_gguf_pys(name: str) -> None:
    """Of any bytes, so that every code is met: NaN and infinite scales among them."""
    kind = BY_NAME[name]
    shape = (24, 512 // kind.block * kind.size)
    data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with np.errstate(all="ignore"):
        found = decode_rows(data, kind)
        right = decode(data, kind)
    assert found.dtype == np.float32
    assert np.isfinite(found).mean() > 0.5
    np.testing.assert_array_equal(found, right.reshape(24, 512))


@pytest.mark.parametrize("kv_b", ["split", "flat"])
@pytest.mark.parametrize("rank", [0, 1])
def test_heads_of_kv_b(kv_b: str, rank: int) -> None:
    plan, tensors = plan_of(kv_b=kv_b)
    hp = plan.hp
    right = kv_b_proj(tensors, 0, hp)
    rows = (rank * right.shape[0] // 2, (rank + 1) * right.shape[0] // 2)
    heads = heads_of(rows, hp)
    k = tensors["blk.0.attn_k_b.weight"].reshape(-1, hp.nope)[slice(*k_rows(heads, hp))]
    v = tensors["blk.0.attn_v_b.weight"].reshape(-1, hp.kv_lora)[slice(*v_rows(heads, hp))]
    np.testing.assert_array_equal(assemble(k, v, hp), right[slice(*rows)])
    with pytest.raises(ValueError, match="no whole heads"):
        heads_of((0, hp.nope), hp)


def part_of(plan: Plan, name: str, number: int = 0) -> tuple[ParameterPlan, Shape]:
    parameter = plan.parameters[name, "weight"]
    return parameter, shape_of(parameter.parts[number][0].info, stacked="experts" in name)


@pytest.mark.parametrize("chunk", [1, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_experts_in_chunks_of_any_size(number: int, chunk: int) -> None:
    """Gate and up by rows, down by columns, into one tensor beside one another."""
    plan, tensors = plan_of(quant="q8_0")
    parameter, shape = part_of(plan, "model.layers.1.mlp.experts", number)
    cut = cut_columns if number == 2 else cut_rows
    role = ("gate", "up", "down")[number]
    ranks = []
    for rank in range(4):
        part = cut(shape, rank, 4)
        target = torch.zeros(shape.count, part.height + 3, part.width // 32 * 34, dtype=torch.uint8)
        fills = [Fill(parameter.parts[number], target[:, 1:-2], part, stacked=True)]
        fill(plan, fills, chunk)
        assert not target[:, 0].any()
        assert not target[:, -2:].any()
        ranks.append(decode_rows(target[:, 1:-2].numpy(), BY_NAME["Q8_0"]))
    found = np.concatenate(ranks, axis=2 if number == 2 else 1)
    np.testing.assert_array_equal(found, tensors[f"blk.1.ffn_{role}_exps.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("quant", ["q8_0", "f16", "bf16", "f32", "q4_0"])
def test_floats_are_cut_anywhere(quant: str, dtype: torch.dtype) -> None:
    """Columns of a float, or of what is decoded, need not end with a block."""
    plan, tensors = plan_of(quant=quant)
    parameter, shape = part_of(plan, "model.layers.0.self_attn.indexer.wk_weights_proj")
    part = Slice((3, 11), (5, 40))
    target = torch.zeros(1, 8, 35, dtype=dtype)
    fill(plan, [Fill(parameter.parts[0], target, part)], 3000)
    right = tensors["blk.0.indexer.attn_k.weight"][3:11, 5:40]
    assert torch.equal(target[0], torch.from_numpy(right).to(dtype))
    assert shape.rows == 64


@pytest.mark.parametrize("quant", ["q8_0", "q4_k", "iq4_nl", "f32"])
def test_kv_b_from_the_file(quant: str) -> None:
    plan, tensors = plan_of(quant=quant)
    hp = plan.hp
    parameter = plan.parameters["model.layers.0.self_attn.kv_b_proj", "weight"]
    right = torch.from_numpy(kv_b_proj(tensors, 0, hp)).bfloat16()
    half = right.shape[0] // 2
    target = torch.zeros(1, half, hp.kv_lora, dtype=torch.bfloat16)
    read = fill(plan, [Fill(parameter.parts[0], target, Slice((half, 2 * half), (0, 64)))], 100)
    assert torch.equal(target[0], right[half:])
    assert read == sum(piece.info.nbytes for piece in parameter.parts[0]) // 2


def test_only_the_ranks_bytes_are_read() -> None:
    plan, _ = plan_of(quant="q8_0")
    parameter, shape = part_of(plan, "model.layers.1.mlp.experts")
    part = cut_rows(shape, 1, 4)
    target = torch.zeros(shape.count, part.height, shape.columns // 32 * 34, dtype=torch.uint8)
    read = fill(plan, [Fill(parameter.parts[0], target, part, stacked=True)], 1 << 20)
    assert read == parameter.parts[0][0].info.nbytes // 4 == target.numel()


def test_a_file_cut_short_while_it_is_loaded(tmp_path: Path) -> None:
    spec, _, paths = made(quant="q8_0")
    copy = tmp_path / "m.gguf"
    copy.write_bytes(paths[0].read_bytes())
    plan = make_plan(open_model(copy), spec.hp, spec.pattern)
    parameter, shape = part_of(plan, "lm_head")
    os.truncate(copy, copy.stat().st_size // 2)
    target = torch.zeros(1, shape.rows, shape.columns // 32 * 34, dtype=torch.uint8)
    with pytest.raises(GgufError, match=r"m\.gguf: ends at byte \d+ while it is loaded"):
        fill(plan, [Fill(parameter.parts[0], target, whole(shape))], 1000)


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file and where; the system's own error names neither."""

    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(9))
    monkeypatch.setattr(os, "preadv", preadv)
    with (
        OpenFiles([str(path)]) as files,
        pytest.raises(GgufError, match=r"m\.gguf: cannot be read at byte 3: Input/output error"),
    ):
        files.read(0, 3, np.zeros(4, dtype=np.uint8))


def test_no_file_stays_open_where_one_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError), OpenFiles([str(tmp_path / "a"), str(tmp_path / "b")]):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kinds", [("Q8_0", "Q8_0", "Q4_0"), ("Q4_K", "Q6_K", "IQ4_XS")])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_experts_on_the_cpu(kinds: tuple[str, str, str], tokens: int) -> None:
    """Each token's experts by hand, in float32, from the decoded weights."""
    random = np.random.default_rng(1)
    hidden, width, experts, chosen = 256, 256, 4, 2
    shapes = [(experts, width, hidden), (experts, width, hidden), (experts, hidden, width)]
    data, plain = [], []
    for kind, shape in zip(kinds, shapes, strict=True):
        encoded = encode(random.standard_normal(shape, dtype=np.float32) / 16, BY_NAME[kind])
        data.append(torch.from_numpy(encoded.copy()))
        plain.append(torch.from_numpy(decode(encoded, BY_NAME[kind]).reshape(shape).copy()))
    x = torch.from_numpy(random.standard_normal((tokens, hidden), dtype=np.float32))
    ids = torch.from_numpy(random.integers(0, experts, (tokens, chosen)).astype(np.int32))
    weights = torch.from_numpy(random.random((tokens, chosen), dtype=np.float32))
    numbers = [BY_NAME[kind].number for kind in kinds]
    if kinds[0] == kinds[1]:
        gate_up, types = [torch.cat(data[:2], 1)], numbers[:1]
    else:
        gate_up, types = data[:2], numbers[:2]
    found = apply_experts(x, gate_up, data[2], weights, ids, types, numbers[2], "silu")
    right = torch.zeros(tokens, hidden)
    for t in range(tokens):
        for c in range(chosen):
            gate, up, down = (each[ids[t, c]] for each in plain)
            between = torch.nn.functional.silu(gate @ x[t]) * (up @ x[t])
            right[t] += weights[t, c] * (down @ between)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
