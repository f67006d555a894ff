"""Tiny models: valid by gguf-py's reader and by our own, the weights those that were drawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from glm5_kernel.gguf.hyperparameters import contradictions, indexer_pattern, read_hyperparameters
from glm5_kernel.gguf.inspect import inspect_model
from glm5_kernel.gguf.names import indexer_layers
from glm5_kernel.gguf.reader import Array, read_file
from glm5_kernel.gguf.shards import open_model
from glm5_kernel.gguf.tiny import main
from glm5_kernel.gguf.tiny.codec import decode, encode
from glm5_kernel.gguf.tiny.recipes import MIXES, RECIPES, kind_for
from glm5_kernel.gguf.tiny.reference import read_tensors
from glm5_kernel.gguf.tiny.spec import LEFT_OUT, make_spec, tensor_dims
from glm5_kernel.gguf.tiny.vocabulary import make_vocabulary
from glm5_kernel.gguf.tiny.weights import make_tensor
from glm5_kernel.gguf.types import BY_NAME, TYPES

from tests.kernel.gguf.models import made

SLOW = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s")
"""Types that take libgguf a minute for a model, and seconds for its tables: tried on a matrix."""
ALIKE = ("q4_1", "q5_1", "q2_k", "q3_k", "q5_k", "iq3_xxs", "iq3_s", "iq4_xs")
"""Types that a plain run tries on a matrix: whole models have them in mixes, or others like them.
"""

FORMS: list[Any] = [
    {},
    {"variant": "glm5.2"},
    {"variant": "glm5.2", "shared": "repeat"},
    {"variant": "glm5.2", "shared": "repeat", "types": False},
    {"variant": "glm5.2", "shared": "omit", "types": False},
    {"mtp": True},
    {"kv_b": "flat"},
    {"kv_b": "whole"},
    {"split": 2},
    {"split": 5, "mtp": True},
    {"same_experts": True, "quant": "q4_k"},
    *(
        pytest.param({"quant": quant}, marks=pytest.mark.slow if quant in ALIKE else ())
        for quant in RECIPES
        if quant != "q8_0" and quant not in SLOW
    ),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_our_reader_sees_what_ggufs_does(form: dict[str, Any]) -> None:
    spec, _, paths = made(**form)
    model = open_model(paths[-1])
    theirs = {tensor.name: tensor for path in paths for tensor in gguf.GGUFReader(path).tensors}
    assert list(model.tensors) == list(theirs)
    for name, located in model.tensors.items():
        info, their = located.info, theirs[name]
        assert info.ne == tuple(int(n) for n in their.shape)
        assert info.number == int(their.tensor_type)
        assert located.offset == int(their.data_offset)
        assert info.nbytes == int(their.n_bytes)
    assert read_hyperparameters(model.metadata) == (
        spec.hp if not (spec.variant == "glm5.2" and spec.types)
        else spec.hp.__class__(**{**vars(spec.hp), "indexer_types": spec.pattern.pattern})
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_nothing_is_wrong_with_them(form: dict[str, Any]) -> None:
    """Names, dimensions, config: as an adapter checks them."""
    spec, folder, paths = made(**form)
    config = json.loads((folder / "config.json").read_text())
    found = inspect_model(open_model(paths[0]), config=config, mtp=bool(spec.hp.mtp_layers))
    assert found.problems == ()
    assert found.pattern is not None
    assert found.pattern.pattern == spec.pattern.pattern
    assert contradictions(config, found.hp, found.pattern) == []
    assert 1 in found.possible


LOSS = {
    "F32": 0, "F16": 0.00021, "BF16": 0.0017, "Q4_0": 0.087, "Q4_1": 0.078, "Q5_0": 0.043,
    "Q5_1": 0.039, "Q8_0": 0.0055, "Q2_K": 0.30, "Q3_K": 0.16, "Q4_K": 0.075, "Q5_K": 0.038,
    "Q6_K": 0.018, "IQ1_S": 0.53, "IQ1_M": 0.62, "IQ2_XXS": 0.37, "IQ2_XS": 0.32, "IQ2_S": 0.28,
    "IQ3_XXS": 0.22, "IQ3_S": 0.18, "IQ4_NL": 0.078, "IQ4_XS": 0.079, "MXFP4": 0.12,
}  # fmt: skip
"""What each type loses of a normal distribution, relative to its norm: as measured."""


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_weights_are_those_drawn(form: dict[str, Any]) -> None:
    """Within what each type loses."""
    spec, _, paths = made(**form)
    vocabulary = make_vocabulary(spec.hp.vocab)
    stored = read_tensors(paths)
    for name, ne in tensor_dims(spec).items():
        values = stored[name]
        assert values.shape == ne[::-1]
        drawn = np.broadcast_to(make_tensor(spec, name, vocabulary), values.shape)
        lost = np.linalg.norm(values - drawn) / np.linalg.norm(drawn)
        assert lost <= 1.15 * LOSS[kind_for(spec.quant, name, ne).name], name


def test_k_b_and_v_b_make_the_whole() -> None:
    """Both forms of a file hold the same model."""
    spec, _, paths = made(quant="f32")
    whole = read_tensors(made(quant="f32", kv_b="whole")[2])
    apart = read_tensors(paths)
    flat = read_tensors(made(quant="f32", kv_b="flat")[2])
    hp = spec.hp
    for layer in range(hp.layers):
        both = whole[f"blk.{layer}.attn_kv_b.weight"].reshape(hp.heads, hp.nope + hp.v, hp.kv_lora)
        k, v = (apart[f"blk.{layer}.attn_{half}_b.weight"] for half in "kv")
        for head in range(hp.heads):
            assert np.array_equal(both[head, : hp.nope], k[head].T)
            assert np.array_equal(both[head, hp.nope :], v[head])
        assert np.array_equal(flat[f"blk.{layer}.attn_k_b.weight"].reshape(k.shape), k)


def test_forms_of_glm_5_2() -> None:
    """Shared layers omit or repeat their tensors; types stand in the file or do not."""
    for shared in ("omit", "repeat"):
        for types in (True, False):
            spec, _, paths = made(variant="glm5.2", shared=shared, types=types)
            model = open_model(paths[0])
            layers = indexer_layers(model.tensors)
            assert layers == ({0, 1, 2, 6} if shared == "omit" else set(range(7)))
            assert ("glm-dsa.attention.indexer.types" in model.metadata) == types
            hp = read_hyperparameters(model.metadata)
            found = indexer_pattern(hp, layers)
            assert found is not None
            known = types or shared == "omit"
            assert found.pattern == (spec.pattern.pattern if known else "FFFFFFF")


def test_a_context_of_a_million_tells_glm_5_2() -> None:
    changes = (("context", 1 << 20),)
    spec = make_spec("glm5.2", "micro", changes=dict(changes), shared="repeat", types=False)
    found = indexer_pattern(spec.hp, frozenset(range(7)))
    assert found is not None
    assert found.pattern == "FFFSSSF"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_splits_have_as_many_files_as_asked(tmp_path: Path, count: int) -> None:
    argv = [str(tmp_path), "--dims", "micro", "--split", str(count), "--no-golden"]
    assert main([*argv, "--quant", "q4_0"]) == 0
    files = sorted(tmp_path.glob("*.gguf"))
    assert len(files) == count
    sizes = [len(read_file(path).tensors) for path in files]
    assert max(sizes[1:], default=0) - min(sizes[1:], default=0) <= 1
    assert count == 1 or sizes[0] == 0
    open_model(files[-1])


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.name != "golden.json")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_the_same_arguments_make_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        argv = [str(tmp_path / folder), "--dims", "micro", "--seed", str(seed), "--no-golden"]
        assert main(argv) == 0
        digests.add(digest(tmp_path / folder))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert len(digests) == 2


def test_bare_configs_leave_out_what_the_file_tells() -> None:
    _, folder, _ = made(variant="glm5.2", bare=True)
    config = json.loads((folder / "config.json").read_text())
    assert not set(LEFT_OUT) & set(config)
    assert config["model_type"] == "glm_moe_dsa"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--topk", "0"], "topk: got 0; allowed: from 1 to 1048576"),
        (["--layers", "1"], "layers: got 1; allowed: from 2 to 1000"),
        (["--layers", "0"], "layers: got 0; allowed: from 2 to 1000"),
        (["--hidden", "300"], "hidden: got 300; allowed: multiples of 256 from 256 to 65536"),
        (["--vocab", "100"], "vocab: got 100; allowed: from 320 to"),
        (["--experts", "1"], "experts: got 1; allowed: from 2 to 1024"),
        (["--heads", "99999999999"], "heads: got 99999999999; allowed: from 1 to 1024"),
        (["--context", "-5"], "context: got -5; allowed: from 1 to"),
        (["--split", "999"], "split: got 999; allowed: from 1 to"),
        (["--split", "0"], "split: got 0; allowed: from 1 to"),
        (["--seed", "-1"], "seed: got -1; allowed: from 0 to"),
        (["--quant", "q9"], "invalid choice: 'q9'"),
        (["--shared", "repeat"], "--shared and --no-types are forms of 5.2; add --variant glm5.2"),
        (["--no-types"], "--shared and --no-types are forms of 5.2; add --variant glm5.2"),
    ],
)
def test_wrong_usage(
    tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), *argv])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    assert main([str(folder), "--dims", "micro", "--device", "cuda"]) == 1
    assert "--device cuda: torch has no GPU here" in capsys.readouterr().err
    assert not folder.exists()


def test_golden_tokens_that_no_context_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--dims", "micro", "--context", "23"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the context of 23 tokens holds no prompt")
    assert said.endswith("give --context more, or --no-golden\n")
    assert list(tmp_path.iterdir()) == []


MICRO = ["--dims", "micro", "--no-golden"]


def test_a_folder_that_holds_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Golden tokens of before are not those of the new weights."""
    assert main([str(tmp_path), *MICRO, "--quant", "q4_0"]) == 0
    (tmp_path / "golden.json").write_text("{}")
    capsys.readouterr()
    assert main([str(tmp_path), *MICRO, "--quant", "f16"]) == 0
    said = capsys.readouterr().out
    assert "holds glm5-tiny-q4_0.gguf too, which config.json does not describe" in said
    assert not (tmp_path / "golden.json").exists()
    assert main([str(tmp_path / "new"), *MICRO]) == 0
    assert "note:" not in capsys.readouterr().out


def test_a_model_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glm5_kernel.gguf.tiny.writer.write_companions", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([str(tmp_path), *MICRO])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "in"):
        assert main([str(folder), *MICRO]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {folder}: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.lower() in SLOW else ()) for name in LOSS],
)
def test_gguf_decodes_what_was_encoded(name: str) -> None:
    kind = BY_NAME[name]
    values = np.random.default_rng(0).standard_normal((4, 512), dtype=np.float32)
    data = encode(values, kind)
    if name not in ("F32", "F16"):
        assert data.dtype == np.uint8
        assert data.shape == (4, 512 // kind.block * kind.size)
    lost = np.linalg.norm(decode(data, kind) - values) / np.linalg.norm(values)
    assert lost <= 1.15 * LOSS[name]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_types_that_can_be_written(recipe: str) -> None:
    """Rows hold whole blocks; vectors and the router are F32; k_b of 192 is never a K type."""
    spec = make_spec("glm5", "tiny", quant=recipe, mtp=True)
    kinds = {name: kind_for(recipe, name, ne) for name, ne in tensor_dims(spec).items()}
    assert {kind.name for kind in kinds.values()} <= set(LOSS)
    assert all(ne[0] % kinds[name].block == 0 for name, ne in tensor_dims(spec).items())
    assert kinds["blk.1.ffn_gate_inp.weight"].name == "F32"
    assert kinds["blk.0.attn_k_b.weight"].block <= 32
    named = {kind.name for kind in kinds.values()}
    assert recipe in MIXES or recipe.upper() in named


def test_gguf_metadata_of_the_tokenizer() -> None:
    spec, _, paths = made()
    header = read_file(paths[0])
    tokens = header.metadata["tokenizer.ggml.tokens"]
    merges = header.metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, Array)
    assert isinstance(merges, Array)
    assert tokens.length == spec.hp.vocab
    assert merges.length > 100
    assert TYPES[int(header.tensors[0].number)].name == "Q8_0"
