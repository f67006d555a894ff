"""The kernel's wheel is built once for the same sources, and again when one changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from glm5_deploy.kernel_wheel import KernelWheelError, built_wheel

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "glm5-kernel"
version = "0.0.1"
[tool.hatch.build.targets.wheel]
packages = ["glm5_kernel"]
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    folder = tmp_path / "kernel"
    (folder / "glm5_kernel").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "glm5_kernel" / "__init__.py").write_text("VALUE = 1\n")
    return folder


def test_equal_sources_make_equal_bytes(kernel: Path, tmp_path: Path) -> None:
    first = built_wheel(kernel, tmp_path / "a").read_bytes()
    os.utime(kernel / "glm5_kernel" / "__init__.py", (1, 1))
    copy = shutil.copytree(kernel, tmp_path / "elsewhere" / "kernel")
    assert built_wheel(copy, tmp_path / "b").read_bytes() == first


def test_nothing_is_built_while_no_source_changes(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = built_wheel(kernel, tmp_path / "cache")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("built again"))
    assert built_wheel(kernel, tmp_path / "cache") == first
    # touched, but the same: found by its content
    os.utime(kernel / "glm5_kernel" / "__init__.py", (1, 1))
    assert built_wheel(kernel, tmp_path / "cache") == first


def test_a_changed_source_makes_another_wheel(kernel: Path, tmp_path: Path) -> None:
    first = built_wheel(kernel, tmp_path / "cache")
    before = first.read_bytes()
    (kernel / "glm5_kernel" / "__init__.py").write_text("VALUE = 2\n")
    second = built_wheel(kernel, tmp_path / "cache")
    assert second != first
    assert second.read_bytes() != before
    assert first.read_bytes() == before


def test_a_wheel_that_was_deleted_is_built_again(kernel: Path, tmp_path: Path) -> None:
    first = built_wheel(kernel, tmp_path / "cache")
    first.unlink()
    assert built_wheel(kernel, tmp_path / "cache").is_file()


def test_a_failed_build_says_why_and_leaves_nothing(kernel: Path, tmp_path: Path) -> None:
    (kernel / "pyproject.toml").write_text(PYPROJECT.replace('version = "0.0.1"', ""))
    with pytest.raises(KernelWheelError, match="version"):
        built_wheel(kernel, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_without_a_checkout_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(KernelWheelError, match="not part of this installation"):
        built_wheel(tmp_path / "nowhere", tmp_path / "cache")
