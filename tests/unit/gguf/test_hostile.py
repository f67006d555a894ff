"""Files and configs made to break `inspect`: always one answer, never a traceback."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glm5_kernel.gguf.errors import GgufError, some_of
from glm5_kernel.gguf.folders import only_model
from glm5_kernel.gguf.hyperparameters import contradictions, read_hyperparameters
from glm5_kernel.gguf.inspect import main
from glm5_kernel.gguf.layout import cut_problem, place
from glm5_kernel.gguf.names import tensor_problems, weight_of
from glm5_kernel.gguf.plan import make_plan
from glm5_kernel.gguf.reader import MAX_NESTED, MAX_STRINGS, TensorInfo, read_bytes
from glm5_kernel.gguf.shards import Header, Located, Model, open_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.gguf.support import (
    SMALL,
    header_bytes,
    laid_out,
    metadata_of,
    tensors_of,
    text,
    value_bytes,
    write_model,
    write_sparse,
)

Row = tuple[str, tuple[int, ...], int]
MOST = (1 << 64) - 1
WHOLE = st.sampled_from([0, 1, 2, 3, 5, 256, 512, 1 << 31, 1 << 62, 1 << 63, MOST])
STRANGE = ["", "x", "yarn", "a\nb", "\x1b[31mred", "\u202e", "deepseek2", "\0"]


def packed(kind: int, code: str, *values: Any) -> bytes:  # noqa: ANN401
    return struct.pack(f"<I{code}", kind, *values)


VALUES = st.one_of(
    WHOLE.map(lambda value: packed(10, "Q", value)),
    st.sampled_from([0.0, -1.0, float("inf"), float("nan"), 1e-30]).map(
        lambda value: packed(6, "f", value)
    ),
    st.sampled_from([-1, -(1 << 63)]).map(lambda value: packed(11, "q", value)),
    st.sampled_from(STRANGE).map(value_bytes),
    st.lists(st.sampled_from(["full", "shared", "x\n"]), max_size=4).map(value_bytes),
    st.lists(st.integers(0, 2), max_size=4).map(value_bytes),
    st.just(packed(9, "IQIQB", 9, 1, 0, 1, 3)),
)
KEYS = st.sampled_from([
    *metadata_of(SMALL), "general.name", "general.alignment", "split.no", "split.count",
    *(f"glm-dsa.{key}" for key in (
        "attention.indexer.types", "attention.indexer.top_k_frequency", "rope.scaling.type",
        "attention.indexer.skip_top_k_offset", "rope.scaling.factor", "nextn_predict_layers",
    )),
])  # fmt: skip
NAMES = st.sampled_from([
    "blk.00.attn_norm.weight", "blk.0.attn_norm.weight\n", "blk.\u0663.attn_norm.weight", "",
    "a\x1b[2J", "blk.1.exp_probs_b", "blk.0.attn_kv_b.weight", "blk.999999.x",
    "blk.3.nextn.embed_tokens.weight",
])  # fmt: skip
ROWS = st.one_of(
    st.tuples(NAMES, st.none(), st.none()),
    st.tuples(st.none(), st.lists(WHOLE, min_size=1, max_size=4).map(tuple), st.none()),
    st.tuples(st.none(), st.none(), st.sampled_from([1, 4, 12, 24, 39, 41, 99, (1 << 32) - 1])),
)
CONFIGS = st.dictionaries(
    st.sampled_from([
        "hidden_size", "index_topk_pattern", "indexer_types", "index_topk_freq", "rope_parameters",
        "index_skip_topk_offset", "rope_scaling", "rope_theta", "scoring_func",
    ]),
    st.sampled_from([
        None, 0, -1, 5, float("inf"), float("nan"), "x", "", [], [1], [[1]], [{}], {}, {"type": 5},
        True, "FSF", 1.5, "\ud800", "a\nb", 10**400,
    ]),
    max_size=3,
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(KEYS, VALUES, max_size=3), st.data(), CONFIGS)
def test_nothing_in_a_file_ends_in_a_traceback(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    metadata: dict[str, bytes],
    data: st.DataObject,
    config: dict[str, Any],
) -> None:
    rows = tensors_of(SMALL)
    for name, ne, number in data.draw(st.lists(ROWS, max_size=2)):
        at = data.draw(st.integers(0, len(rows) - 1))
        old = rows[at]
        rows[at] = (name if name is not None else old[0], ne or old[1], number or old[2])
    path = written(tmp_path / "m.gguf", metadata, rows)
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = main([str(path), "--tp", "2", "--tp", "17"])
    said = capsys.readouterr()
    assert code == main([str(path), "--json"])
    document = json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert (code == 1) == bool(document["problems"])
    assert not [
        letter for letter in said.out + said.err if letter not in "\n" and not letter.isprintable()
    ]
    assert len(said.err) < 20_000


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def written(path: Path, metadata: dict[str, bytes], rows: list[Row]) -> Path:
    """A sparse file with metadata that are bytes already."""
    entries = {key: value_bytes(value) for key, value in metadata_of(SMALL).items()} | metadata
    try:
        infos, size = laid_out(rows)
        infos = [replace(info, offset=info.offset & MOST) for info in infos]
    except ValueError:
        infos, size = [TensorInfo(*row, 0) for row in rows], 0
    start = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries))
    start += b"".join(text(key) + value for key, value in entries.items())
    start += header_bytes({}, infos)[24:]
    start += bytes(-len(start) % 32)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + min(size, 1 << 40))
    return path


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"index_topk_pattern": 5}, "index_topk_pattern is 5; a list or a text is right"),
        ({"indexer_types": [[1]] * 3}, "indexer_types: [1]"),
        ({"index_topk_freq": "x"}, "index_topk_freq is 'x'; a whole number is right"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": []}, "index_skip_topk_offset is []"),
        ({"rope_parameters": [1]}, "rope_parameters is [1]; an object is right"),
        ({"hidden_size": float("inf")}, "hidden_size is inf in config.json, 512 in the file"),
        ({"hidden_size": 10**400}, "hidden_size is 1000"),
    ],
)
def test_a_config_of_wrong_kinds(config: dict[str, Any], message: str) -> None:
    hp = read_hyperparameters(metadata_of(SMALL))
    assert message in " ".join(contradictions(config, hp))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        # A schedule for so many layers would take all memory.
        ({"block_count": 1 << 60, "attention.indexer.top_k_frequency": 4}, "at most 4096"),
        ({"block_count": (1 << 60) + 1, "nextn_predict_layers": 1 << 60}, "at most 4096"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan; a number is needed"),
        ({"rope.freq_base": float("inf")}, "freq_base is inf; a number is needed"),
        ({"rope.freq_base": -1.0}, r"rope\.freq_base is -1; more than 0 is needed"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "epsilon is 0; more than 0 is needed"),
        ({"attention.head_count": 0}, r"attention\.head_count is 0; more than 0 is needed"),
        ({"attention.indexer.top_k": 0}, r"indexer\.top_k is 0; more than 0 is needed"),
        ({"context_length": 0}, "context_length is 0; more than 0 is needed"),
    ],
)
def test_metadata_that_cannot_be(metadata: dict[str, Any], message: str) -> None:
    stated = metadata_of(SMALL) | {f"glm-dsa.{key}": value for key, value in metadata.items()}
    with pytest.raises(GgufError, match=message):
        read_hyperparameters(stated)


@pytest.mark.parametrize(
    "name", ["blk.01.attn_norm.weight", "blk.1.attn_norm.weight\n", "blk.\u0661.attn_norm.weight"]
)
def test_a_block_has_one_name(name: str) -> None:
    """Otherwise two tensors would fill one parameter."""
    assert weight_of("blk.1.attn_norm.weight", SMALL) is not None
    assert weight_of(name, SMALL) is None


def test_one_weight_by_two_names() -> None:
    rows = [*tensors_of(SMALL), ("blk.1.exp_probs_b", (8,), 0)]
    problems = tensor_problems({info.name: info for info in laid_out(rows)[0]}, SMALL)
    assert problems == [
        "tensors blk.1.exp_probs_b.bias and blk.1.exp_probs_b are the same weight; one of them is "
        "right"
    ]


def test_too_few_dimensions_are_told_with_all_else() -> None:
    rows = [
        (name, ne[:1] if name == "output.weight" else ne, kind)
        for name, ne, kind in tensors_of(SMALL)
    ]
    infos, _ = laid_out(rows)
    header = Header("m.gguf", 3, {}, tuple(infos), 32, 0)
    model = Model(("m.gguf",), (header,), {}, {each.name: Located(each, 0, 0) for each in infos})
    with pytest.raises(GgufError, match=r"output\.weight has dimensions \[512\]; \[512, 512\]"):
        make_plan(model, SMALL, None, tp=2)
    assert cut_problem("x", "rows", (512,), 2, None) == "x: 1 rows are no multiple of 2"


def test_a_thousand_like_problems_are_not_all_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(some_of("abc", most=2)) == ["a", "b", "… and 1 more of this kind"]
    assert list(some_of("ab", most=2)) == ["a", "b"]
    (path,) = write_model(tmp_path, replace(SMALL, layers=60))
    write_sparse(path, metadata_of(SMALL), [(*row[:2], 99) for row in tensors_of(SMALL)])
    assert main([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("quantisation number 99 is unknown") == 8
    assert "more of this kind" in said


def test_arrays_in_arrays_are_bounded() -> None:
    """Each takes 12 bytes and would take Python a while: five minutes for a header of 256 MB."""
    count = MAX_NESTED + 1
    data = packed(9, "IQ", 9, count) + struct.pack("<IQ", 4, 0) * count
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")
    with pytest.raises(GgufError, match=f"k has {count} arrays in it; at most {MAX_NESTED}"):
        read_bytes(start + data)
    count = MAX_STRINGS + 1
    with pytest.raises(GgufError, match=f"k has {count} strings; at most {MAX_STRINGS}"):
        read_bytes(start + packed(9, "IQ", 8, count))


@pytest.mark.parametrize("number", ["x", float("nan")])
def test_a_lone_shard_with_a_strange_number(tmp_path: Path, number: Any) -> None:  # noqa: ANN401
    (path,) = write_model(tmp_path, SMALL, **{"split.count": 3, "split.no": number})
    with pytest.raises(GgufError, match=r"split\.no is .*; a whole number is right"):
        open_model(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"this is a folder; name a \.gguf file in it"):
        open_model(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GgufError, match="no regular file"):
        open_model(tmp_path / "pipe.gguf")
    with pytest.raises(GgufError, match="there is no such file"):
        open_model(tmp_path / "pipe.gguf" / "m.gguf")


@pytest.mark.parametrize("stem", ["a b", "a\nb", "ä"])
def test_any_name_of_a_split(tmp_path: Path, stem: str) -> None:
    paths = write_model(tmp_path, SMALL, split=3)
    for path in paths:
        path.rename(path.with_name(path.name.replace("m-", f"{stem}-")))
    assert len(open_model(tmp_path / f"{stem}-00003-of-00003.gguf").paths) == 3
    (tmp_path / f"{stem}-00002-of-00003.gguf").unlink()
    with pytest.raises(GgufError) as caught:
        open_model(tmp_path / f"{stem}-00003-of-00003.gguf")
    assert len(str(caught.value).splitlines()) == 1


def test_a_shards_number_of_many_digits() -> None:
    """Python converts no more than 4,300 of them."""
    with pytest.raises((GgufError, OSError)):
        open_model(f"m-{'1' * 5000}-of-00001.gguf")


def program(*words: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401
    command = [sys.executable, "-m", "glm5_kernel", *words]
    environment = {"PYTHONPATH": "kernel", "PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, env=environment, check=False, timeout=60, **more)


def test_names_and_terminals_that_are_not_utf_8(tmp_path: Path) -> None:
    (path,) = write_model(tmp_path, SMALL, **{"general.name": "Gr\u00fc\u00dfe"})
    strange = os.fsencode(tmp_path) + b"/\xff.gguf"
    os.rename(path, strange)
    done = program("inspect", strange, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\udcff.gguf" in done.stdout
    assert b"Gr\\xfc\\xdfe" in done.stdout


def test_a_reader_that_goes_away_and_a_full_disk(tmp_path: Path) -> None:
    (path,) = write_model(tmp_path, SMALL)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = program("inspect", str(path), stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"")
    with Path("/dev/full").open("wb") as full:
        done = program("inspect", str(path), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"error: [Errno 28]" in done.stderr


def test_types_that_nothing_decodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would end the loading in the middle."""
    kinds = {"attn_output.weight": "Q8_K", "nextn.eh_proj.weight": "Q8_1"}
    (path,) = write_model(tmp_path, SMALL, kinds=kinds)
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "tensor blk.0.attn_output.weight is of type Q8_K" in said
    assert "Q8_1, which is known" not in said
    assert main([str(path), "--mtp"]) == 1
    assert "tensor blk.3.nextn.eh_proj.weight is of type Q8_1, which is known" in (
        capsys.readouterr().out
    )


def test_a_vector_is_never_held_quantised() -> None:
    infos, _ = laid_out([("blk.0.attn_norm.weight", (512,), 8), ("output_norm.weight", (512,), 8)])
    assert [each.action for each in place(infos, SMALL, None)] == ["dequantised"] * 2


def test_all_that_a_draft_needs_is_asked_for() -> None:
    """vLLM's draft has a norm of its own before the head."""
    name = "blk.3.nextn.shared_head_norm.weight"
    tensors = {row[0]: TensorInfo(*row, 0) for row in tensors_of(SMALL) if row[0] != name}
    assert tensor_problems(tensors, SMALL, mtp=True) == [f"1 tensors are missing: {name}"]
    assert tensor_problems(tensors, SMALL, mtp=False) == []


def test_a_folder_called_like_a_model_is_none(tmp_path: Path) -> None:
    (tmp_path / "old.gguf").mkdir()
    (path,) = write_model(tmp_path, SMALL)
    assert only_model(tmp_path) == path
