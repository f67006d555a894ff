"""What is installed here, told without importing it."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from glm5_kernel import __version__
from glm5_kernel.compat.versions import DISTRIBUTIONS, installed
from glm5_kernel.doctor.report import ABSENT, Check, failed, passed, skipped

DAMAGED = "installed, but without a version: its metadata are damaged"
GROUP = "vllm.general_plugins"
_DISTRIBUTIONS = {
    "vllm": DISTRIBUTIONS,
    "torch": ("torch",),
    "triton": ("triton",),
    "glm5-kernel": ("glm5-kernel",),
    "vllm-gguf-plugin": ("vllm-gguf-plugin",),
    "gguf": ("gguf",),
}
_DRIVER = Path("/proc/driver/nvidia/version")
_SOURCE = "#include <Python.h>\n#include <stdlib.h>\nint glm5(void) { return 0; }\n"


def versions() -> dict[str, str]:
    """Python, the packages that serving is made of, and the NVIDIA driver; "absent" is an answer.

    A glm5-kernel that is not installed but imported from a folder has its own version.
    """
    found = {"python": platform.python_version()}
    found |= {name: _version(names) for name, names in _DISTRIBUTIONS.items()}
    if found["glm5-kernel"] == ABSENT:
        found["glm5-kernel"] = __version__
    return found | {"driver": driver()}


def _version(names: tuple[str, ...]) -> str:
    found = installed(*names)
    return ABSENT if found is None else found or DAMAGED


def driver() -> str:
    """Version of the NVIDIA driver that is loaded."""
    try:
        text = _DRIVER.read_text()
    except OSError:
        return _driver_by_tool()
    found = re.search(r"\b\d+\.\d+(\.\d+)*\b", text)
    return found[0] if found else ABSENT


def _driver_by_tool() -> str:
    rows = _nvidia_smi("driver_version")
    return rows[0][0] if rows else ABSENT


def free_memory() -> dict[str, int]:
    """Bytes that nobody uses of each GPU, by UUID; asked without touching a GPU's memory."""
    rows = _nvidia_smi("uuid,memory.free")
    return {
        row[0].removeprefix("GPU-"): int(row[1]) << 20
        for row in rows
        if len(row) == 2 and re.fullmatch("[0-9]+", row[1])
    }


def _nvidia_smi(fields: str) -> list[list[str]]:
    """A row of values for each GPU; none where the tool is missing, fails or hangs."""
    words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def devices_are_there() -> bool:
    """Whether this process can see an NVIDIA GPU's device file and was not told to see none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return bool(glob.glob("/dev/nvidia[0-9]*")) and visible not in ("", "-1")


def entry_point(environment: Mapping[str, str] = os.environ) -> Check:
    """Whether vLLM will find the plugin and load it."""
    name = "entry point"
    found = next((p for p in entry_points(group=GROUP) if p.value.startswith("glm5_kernel")), None)
    if found is None:
        hint = "install the glm5-kernel wheel: a folder on PYTHONPATH has no entry points"
        return failed(name, f"{GROUP} names no glm5_kernel", hint)
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and found.name not in allowed.split(","):
        hint = f"add {found.name} to VLLM_PLUGINS, or unset it"
        return failed(name, f"VLLM_PLUGINS={allowed} leaves {found.name} out", hint)
    return passed(name, f"{GROUP}: {found.name} = {found.value}")


class CompilerError(Exception):
    """There is no C compiler, or it cannot build against this Python."""


def compiler(*, needed: bool) -> Check:
    """Whether Triton can build its launcher: a C compiler, the headers of C and of this Python.

    Args:
        needed: False on a machine without a GPU, where nothing is launched.
    """
    name, python = "C compiler", sysconfig.get_python_version()
    try:
        return passed(name, f"{_build_something()}, headers of Python {python}")
    except CompilerError as error:
        if not needed:
            return skipped(name, f"no GPU; {error}")
        hint = (
            "Triton builds its launcher at run time: install a C compiler, the C library's headers "
            f"and those of Python {python} (Debian, Ubuntu: gcc libc6-dev python{python}-dev)"
        )
        return failed(name, str(error), hint)


def _build_something() -> str:
    """Choose and call the compiler as Triton does; gives its name and version."""
    program = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if program is None:
        raise CompilerError("there is no gcc or clang, and CC is not set")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "glm5.c")
        source.write_text(_SOURCE)
        result = str(source.with_suffix(".so"))
        _call(program, str(source), "-shared", "-fPIC", "-o", result, f"-I{_headers()}")
    said = _call(program, "-dumpfullversion", "-dumpversion").split()
    return " ".join([Path(program).name, *said[:1]])


def _call(program: str, *words: str) -> str:
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerError(f"{program}: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        said = errors[0].split("error: ", 1)[1] if errors else f"status {done.returncode}"
        raise CompilerError(f"{Path(program).name}: {said}")
    return done.stdout


def _headers() -> str:
    scheme = sysconfig.get_default_scheme()
    # Debian's scheme for what is installed by hand has its headers elsewhere.
    return sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
