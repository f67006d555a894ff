"""The tiny model: the same bytes everywhere, and files that their readers would accept."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from glm5_deploy.demo.tiny_model import VOCABULARY, next_token, write_tiny_model

WEIGHTS_SHA256 = "946bdc775053a6b326ba00116ff8bf2bf25a405d68383265f5aca70756f508fc"
"""Of the file that vLLM 0.32.0 served when the profile's expected answers were recorded."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def test_the_weights_are_the_recorded_ones(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == WEIGHTS_SHA256


def test_tensors_fill_the_file_without_gaps(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for tensor in header.values():
        start, end_of_tensor = tensor["data_offsets"]
        size = 2
        for dimension in tensor["shape"]:
            size *= dimension
        assert (start, end_of_tensor) == (end, end + size)
        end = end_of_tensor
    assert len(content) == 8 + length + end
    assert (8 + length) % 8 == 0


def test_every_byte_is_one_token_of_its_own_number(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert vocabulary["a"] == ord("a")
    assert vocabulary["Ġ"] == ord(" ")
    assert [token["id"] for token in tokenizer["added_tokens"]] == list(range(256, 261))


@pytest.mark.parametrize(
    ("character", "following"),
    [
        ("a", "b"),
        ("z", "a"),
        ("A", "B"),
        ("Z", "A"),
        ("0", "1"),
        ("9", "0"),
        (" ", "a"),
        ("\n", "a"),
    ],
)
def test_what_comes_next(character: str, following: str) -> None:
    assert chr(next_token(ord(character))) == following


def test_every_token_has_a_follower() -> None:
    assert all(0 <= next_token(token) < 128 for token in range(VOCABULARY))


def test_right_files_keep_their_times(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "config.json").write_text("{}")
    write_tiny_model(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    for path, time in before.items():
        if path.name != "config.json":
            assert path.stat().st_mtime_ns == time
