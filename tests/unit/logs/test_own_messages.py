"""What glm5-kernel says when it refuses is explained, in its own present words."""

from __future__ import annotations

from pathlib import Path

import pytest
from glm5_deploy.logs.explain import explain
from glm5_kernel.compat.versions import Found, refusal
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.shards import open_model, shard_paths
from glm5_kernel.settings import read_settings


def name_of(text: str) -> str:
    """The one failure that a log with this message shows."""
    (found,) = explain(f"ERROR [x.py:1] {line}" for line in text.splitlines())
    return found.name


def refused(path: Path) -> str:
    with pytest.raises(GgufError) as error:
        open_model(path)
    return f"glm5_kernel.gguf.errors.GgufError: {error.value}"


def test_an_unknown_vllm() -> None:
    message = refusal(Found("0.27.1+cu130", "0.27.1"))
    assert name_of(f"glm5_kernel: {message}") == "kernel-vllm-unknown"


@pytest.mark.parametrize("variable", ["GLM5_ATTENTION", "GLM5_INDEXER", "GLM5_GGUF"])
def test_a_setting_that_means_nothing(variable: str) -> None:
    (problem,) = read_settings({variable: "nonsense"}).problems.values()
    assert name_of(problem) == "kernel-setting"


def test_missing_empty_and_misnamed_shards(tmp_path: Path) -> None:
    first = tmp_path / "m-00001-of-00003.gguf"
    first.write_bytes(b"")
    assert name_of(refused(first)) == "gguf-shard-missing"
    for path in shard_paths(str(first)):
        Path(path).write_bytes(b"")
    assert name_of(refused(first)) == "gguf-damaged"
    alone = tmp_path / "page.gguf"
    alone.write_bytes(b"<html><body>Not Found</body></html>")
    assert name_of(refused(alone)) == "gguf-damaged"


def test_what_is_not_known_more_closely_is_explained_too(tmp_path: Path) -> None:
    assert name_of(refused(tmp_path / "absent.gguf")) == "gguf-refused"
