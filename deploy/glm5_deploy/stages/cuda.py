"""What CUDA a lock is made for, and which drivers run it."""

from __future__ import annotations

import re

from glm5_deploy.config.numbers import natural

Version = tuple[int, ...]

_RUNTIME = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.(\d+)", re.MULTILINE)
_TORCH = re.compile(r"^torch==[^\s+]+\+cu(\d+)(\d)\b", re.MULTILINE)

OLDEST_DRIVER: dict[int, str] = {12: "525.60.13", 13: "580.65.06"}
"""By CUDA's major version: within one, every driver runs what was compiled for any minor version
(NVIDIA's table of minor version compatibility)."""

BLACKWELL_CUDA: Version = (12, 8)
"""The first with code for compute capability 12.x."""


def lock_cuda(lock: bytes) -> Version | None:
    """The CUDA version that a lock's torch brings; None for a CPU build or an unknown form."""
    text = lock.decode(errors="replace")
    found = _RUNTIME.search(text) or _TORCH.search(text)
    return (int(found[1]), int(found[2])) if found else None


def numbers(version: str) -> Version:
    """``580.95.05`` as numbers that compare."""
    parts = map(natural, version.split("."))
    return tuple(part for part in parts if part is not None)


def shown(version: Version) -> str:
    return ".".join(map(str, version))
