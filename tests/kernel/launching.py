"""What is launched where nothing is compiled, for a process of its own (see `stand_in`).

In place of a compiled kernel there is one that notes what it is run with, and what Triton tells
its form by.
"""
# Triton kernels: constexpr arguments are upper case and tensors have no Python type.
# ruff: noqa: N803, ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from glm5_kernel.ops.launch import Launch, View
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction


@dataclass(frozen=True)
class Run:
    """A launch: Triton's key of the form, device and stream, grid, arguments with addresses."""

    key: str
    stream: int
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    hooks: bool


class Noting(CompiledKernel):  # type: ignore[misc]
    """A compiled kernel that is none."""

    function, packed_metadata = 77, ("packed",)

    def __init__(self, key: str, runs: list[Run]) -> None:
        self.key, self.runs = key, runs

    @property
    def run(self) -> Any:  # noqa: ANN401
        return self._note

    def launch_metadata(self, *_: object) -> None:
        return None

    def _note(self, *given: Any) -> None:  # noqa: ANN401
        grid, (stream, function, packed, _, *hooks), arguments = given[:3], given[3:9], given[9:]
        assert (function, packed) == (self.function, self.packed_metadata)
        plain = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        self.runs.append(Run(self.key, stream, grid, plain, hooks != [None, None]))


@dataclass
class Noted:
    """What ran since `note_runs`, and how often Triton was asked for it."""

    runs: list[Run] = field(default_factory=list)
    asked: int = 0


def note_runs() -> Noted:
    """Compile nothing from here on; note what is run."""
    noted = Noted()

    def compiled(_: JITFunction, key: str, *__: object) -> Noting:
        noted.asked += 1
        return Noting(key, noted.runs)

    triton.knobs.runtime.jit_cache_hook = None
    JITFunction._do_compile = compiled
    return noted


@triton.jit(do_not_specialize=["n", "scale"], do_not_specialize_on_alignment=["p_b"])
def some_kernel(p_a, p_b, n, m, scale, D: tl.constexpr, ALIGN: tl.constexpr, PDL: tl.constexpr):
    pass


SPACE = torch.zeros(4096, dtype=torch.uint8)


def at(first: int, dtype: torch.dtype = torch.float32) -> View:
    """Sixty-four bytes, `first` bytes behind a multiple of 64."""
    start = -SPACE.data_ptr() % 64 + first
    return View(SPACE, dtype, start, start + 64)


@dataclass(frozen=True)
class Launched:
    """Arguments of a launch of `some_kernel`."""

    a: View = field(default_factory=lambda: at(0))
    b: View = field(default_factory=lambda: at(64))
    grid: tuple[int, ...] = (5,)
    n: int = 7
    m: int = 32
    scale: float = 0.5
    dim: int = 64
    align: int = 8
    pdl: bool = False
    options: tuple[tuple[str, int], ...] = (("num_warps", 4), ("num_stages", 2))

    def launch(self) -> Launch:
        return Launch(
            some_kernel, self.grid, (self.n, self.m, self.scale), {"D": self.dim}, pdl=self.pdl,
            **dict(self.options),
        )  # fmt: skip

    def __call__(self) -> None:
        self.launch()(self.a, self.b, ALIGN=self.align)

    def by_triton(self) -> None:
        self.launch()._by_triton((self.a, self.b), {"ALIGN": self.align})
