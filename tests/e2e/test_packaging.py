"""The built wheel alone, in an environment of its own, is enough to use the program."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    wheel: Path
    python: Path

    def run(self, *arguments: str, cwd: Path) -> str:
        """A program of the environment, without the checkout in sight."""
        environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        done = subprocess.run(
            [str(self.python.with_name(arguments[0])), *arguments[1:]],
            cwd=cwd,
            env={**environment, "HOME": str(cwd)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("glm5_deploy-*.whl"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("packaging")
    wheel = build(folder / "dist")
    environment = {**os.environ, "UV_SYSTEM_CERTS": "true"}
    uv = [find_uv_bin(), "--quiet"]
    venv = folder / "venv"
    subprocess.run([*uv, "venv", "--python", sys.executable, str(venv)], check=True)
    python = venv / "bin" / "python"
    install = [*uv, "pip", "install", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, env=environment)
    return Installed(wheel, python)


def test_it_runs(installed: Installed, tmp_path: Path) -> None:
    assert installed.run("glm5-deploy", "--version", cwd=tmp_path).startswith("glm5-deploy ")


def test_it_renders_with_its_own_templates_profiles_and_locks(
    installed: Installed, tmp_path: Path
) -> None:
    inventory = "hosts:\n  a:\n    connection: {address: 192.0.2.1}\n    profile: demo-cpu\n"
    (tmp_path / "inventory.yml").write_text(inventory)
    installed.run("glm5-deploy", "inventory", "check", cwd=tmp_path)
    installed.run("glm5-deploy", "render", "--output", "out", cwd=tmp_path)
    units = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any("ExecStart=" in text and "vllm" in text for text in units)


def test_the_kernel_ships_inside(installed: Installed, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from glm5_deploy.kernel_wheel import kernel_wheel;"
        "print(kernel_wheel(Path('cache')))"
    )
    wheel = Path(installed.run("python", "-c", code, cwd=tmp_path).strip())
    assert wheel.parent.parent.name == "_data"
    assert "glm5_kernel/__init__.py" in zipfile.ZipFile(wheel).namelist()


def test_gguf_headers_are_read_with_the_kernel_that_ships_inside(
    installed: Installed, tmp_path: Path
) -> None:
    code = (
        "from glm5_deploy.kernel_package import require_kernel_package as r; r();"
        "from glm5_kernel.gguf import inspect; print(inspect.__file__)"
    )
    assert "_data/wheels/glm5_kernel-" in installed.run("python", "-c", code, cwd=tmp_path)


def test_two_builds_are_the_same_bytes(installed: Installed, tmp_path: Path) -> None:
    assert build(tmp_path / "again").read_bytes() == installed.wheel.read_bytes()
