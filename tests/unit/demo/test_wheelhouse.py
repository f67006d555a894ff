"""The wheelhouse's lock after downloads that were interrupted, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from glm5_deploy.demo import wheelhouse
from glm5_deploy.locks.text import pins


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "committed.txt"
    path.write_text("thing==1.0 \\\n    --hash=sha256:00\n")
    return path


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip that finds what it was asked for in the folder already."""
    monkeypatch.setattr(wheelhouse, "_pip", lambda *_, **__: "")
    monkeypatch.setattr(wheelhouse, "_find_torch", lambda _: ("2.13.0+cpu", []))


@pytest.mark.usefixtures("_offline")
def test_torch_of_an_interrupted_call_is_locked_too(tmp_path: Path, lock: Path) -> None:
    wheels = tmp_path / "base" / "wheels"
    wheels.mkdir(parents=True)
    for name in ("torch-2.13.0+cpu-cp311-x.whl", "Thing-1.0-py3-none-any.whl"):
        (wheels / name).write_bytes(name.encode())
    shims = {"vllm", "torchvision", "torchaudio", "torchcodec", "triton"}
    wheelhouse._fill(tmp_path / "base", lock, "3.11", lambda _: None)
    found = set(pins((tmp_path / "base" / "lock.txt").read_text()))
    assert found - shims == {"thing", "torch"}
