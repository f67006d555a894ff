"""`inspect`: what it says of good files, bad ones and configs that contradict them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.hyperparameters import hf_config
from glm5_kernel.gguf.inspect import as_json, as_text, inspect_model, main, read_config
from glm5_kernel.gguf.shards import open_model

from tests.unit.gguf.support import GLM5, SMALL, V3, write_model

PATTERN = "FFF" + "SSSF" * 18 + "SSS"
GLM52 = replace(GLM5, indexer_types=PATTERN, context=1 << 20, rope_theta=8e6)


def test_a_full_glm_5_2(tmp_path: Path) -> None:
    """Sparse files of 800 GB: headers are all that is read."""
    paths = write_model(tmp_path, GLM52, split=9, **{"general.name": "GLM-5.2"})
    found = inspect_model(open_model(paths[4]))
    assert found.problems == ()
    assert round(found.values / 1e9, 2) == 753.86
    assert len(found.files) == 9
    assert found.possible == (1, 2, 4, 8, 16)
    assert [memory.tp for memory in found.memory] == [1, 2, 4, 8, 16]
    assert found.pattern is not None
    assert found.pattern.full == 21
    assert sum(each.tensors for each in found.classes) == 1809
    assert sum(each.bytes for each in found.classes) == found.bytes
    assert json.loads(json.dumps(as_json(found)))["hp"]["hidden"] == 6144


def test_the_text_of_a_small_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hp = replace(SMALL, indexer_types="FSF")
    write_model(tmp_path, hp, quant="Q4_K", **{"general.name": "Small"})
    assert main([str(tmp_path / "m.gguf"), "--tp", "1", "--tp", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in (
        "Format: GGUF 3, glm-dsa",
        "Layers: 3, the first 1 dense; 1 MTP block",
        "2 layers have their own, 1 share it (the file's attention.indexer.types)",
        "not loaded (MTP is off)",
        "quantised, cut by rows or columns",
        "a row of 256 Q4_K values makes 128 a rank, no whole number of its blocks of 256 (and 1",
        "bf16",
        "3,720 B",
    ):
        assert expected in text, expected
    assert "Problems" not in text


def words(text: str) -> list[str]:
    return [word for word in text.split() if word.strip("-")]


@pytest.mark.parametrize("width", [68, 72, 80, 100, 130, 200])
def test_no_line_is_wider_and_nothing_is_lost(tmp_path: Path, width: int) -> None:
    """Every word of the widest form is there, and each column's begin at one place."""
    paths = write_model(tmp_path, GLM52, quant="Q4_K", split=9)
    found = inspect_model(open_model(paths[0]))
    found = replace(found, files=(("m.gguf", 5), *found.files[1:]), problems=("a word " * 40,))
    text, widest = as_text(found, width), as_text(found, 10_000)
    assert max(map(len, text.splitlines())) <= width
    assert max(map(len, widest.splitlines())) > 130
    assert sorted(words(text)) == sorted(words(widest))
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("Tensors"))
    (mtp,) = (line for line in lines if line.startswith("mtp"))
    assert mtp[head.index("types") :].startswith("Q4_K 15, ")
    assert mtp[head.index("on a GPU") :].startswith("not loaded")


def test_a_word_that_is_wider_is_whole(tmp_path: Path) -> None:
    paths = write_model(tmp_path, SMALL)
    found = inspect_model(open_model(paths[0]))
    path = "/models/" + "x" * 200 + ".gguf"
    assert f" {path}\n" in as_text(replace(found, files=((path, 5),)), 80)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_width_is_the_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_model(tmp_path, GLM52, quant="Q4_K")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "76")
    for output, width in ((Terminal(), 76), (io.StringIO(), 100)):
        monkeypatch.setattr("sys.stdout", output)
        assert main([path.name]) == 0
        assert width - 5 < max(map(len, output.getvalue().splitlines())) <= width


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, SMALL)
    path = str(tmp_path / "m.gguf")
    assert main([path, "--json", "--mtp"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["hp"]["layers"] == 3
    assert document["memory"][0]["kv"]["layers"] == 4
    assert document["bits_per_weight"] > 8
    assert document["problems"] == []


def test_several_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file of a split may be named: it is told of once. JSON is a list of models then."""
    paths = [str(path) for path in write_model(tmp_path, SMALL, split=3)]
    (other,) = write_model(tmp_path, SMALL)
    assert main([*paths[::-1], str(other)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("File: ") == 2
    assert f"{paths[0]} and 2 more" in text
    assert main([*paths, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert main([*paths, str(other), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_deepseek(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, V3)
    assert main([str(tmp_path / "m.gguf"), "--tp", "8"]) == 0
    text = capsys.readouterr().out
    assert "Indexer" not in text
    assert "deepseek2" in text


def test_a_config_that_contradicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one beside the file is compared unasked."""
    write_model(tmp_path, SMALL)
    config = hf_config(SMALL)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main([str(tmp_path / "m.gguf")]) == 0
    (tmp_path / "config.json").write_text(json.dumps(config | {"index_topk": 99}))
    assert main([str(tmp_path / "m.gguf")]) == 1
    assert "index_topk is 99 in config.json, 2048 in the file" in capsys.readouterr().out


def test_shared_layers_may_stand_in_the_config_alone(tmp_path: Path) -> None:
    (path,) = write_model(tmp_path, SMALL)
    found = inspect_model(open_model(path), config={"index_topk_pattern": "FSF"})
    assert found.pattern is not None
    assert (found.pattern.pattern, found.pattern.origin) == ("FSF", "config.json")


def test_bad_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_model(tmp_path, SMALL, split=3)
    paths[1].unlink()
    assert main([str(paths[0])]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "1 of 3 shards missing" in error
    assert main([str(paths[0]), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "shards missing" in json.loads(captured.out)["problems"][0]


@pytest.mark.parametrize("number", ["0", "-2", "two"])
def test_a_number_of_gpus_that_cannot_be(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["m.gguf", f"--tp={number}"])
    assert caught.value.code == 2
    assert "argument --tp: " in capsys.readouterr().err


def test_bad_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert read_config(path, needed=False) == {}
    with pytest.raises(OSError, match=r"config\.json"):
        read_config(path, needed=True)
    path.write_text("{")
    with pytest.raises(GgufError, match="no JSON"):
        read_config(path, needed=False)
    path.write_text("[]")
    with pytest.raises(GgufError, match="a list; an object is right"):
        read_config(path, needed=False)


def test_nothing_heavy_is_imported() -> None:
    """glm5-deploy reads headers on machines without torch and numpy."""
    code = (
        "import sys, glm5_kernel.gguf.inspect\n"
        "heavy = {'torch', 'numpy', 'gguf', 'transformers', 'vllm'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    environment = {"PYTHONPATH": "kernel", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
