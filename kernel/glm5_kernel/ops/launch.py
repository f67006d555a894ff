"""Launching Triton kernels without Triton's own work at every launch.

Triton binds and classifies every argument of a launch to find out what it has compiled for it; that
takes several times as long as the launch. Here a compiled kernel is kept by what Triton would tell
forms apart by, and launched with the arguments that Triton would give it.
"""
# mypy: disable-error-code="import-untyped, import-not-found, no-untyped-call, no-any-return"

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import JITFunction, driver

KEEPS = triton.__version__.startswith("3.6.")
"""Whether what is said here about Triton was read in this version of it; others launch alone."""

Scalar = int | float

_kept: dict[Hashable, _Kept] = {}


class View(NamedTuple):
    """Bytes of a tensor as another dtype; a tensor is made of it only where one is needed.

    Attributes:
        base: its elements are bytes. Without `last` it is the whole of it.
        first, last: part of a 1-D `base`.
    """

    base: Tensor
    dtype: torch.dtype
    first: int = 0
    last: int | None = None

    def data_ptr(self) -> int:
        return self.base.data_ptr() + self.first

    def tensor(self) -> Tensor:
        part = self.base if self.last is None else self.base[self.first : self.last]
        return part.view(self.dtype)


class _Kept(NamedTuple):
    """A compiled kernel, and the values of its constants in the order of its arguments."""

    compiled: Any
    constants: tuple[Any, ...]


class Launch:
    """The launch of a kernel, but for where its tensors lie.

    Triton (3.6.0: runtime/jit.py) tells forms apart by the current device, types, values of
    constants, options, and whether addresses are multiples of 16; of integers that it specialises
    also by values. Its launcher takes an address for a pointer, ignores constants, and knows from
    the compiled kernel whether that may start before its predecessor ends. Switches of Triton's
    (TRITON_DEBUG …) count as they were at the first launch of a form.

    Args:
        kernel: takes pointers first, then scalars, then constants; PDL is one of these.
        grid: programs, in one to three dimensions.
        scalars: integers and floats, in the order of the kernel's arguments.
        constants: by name, but for PDL.
        pdl: start while the kernel before this one still runs (capability 9.0 and newer).
        options: `num_warps`, `num_stages`, `maxnreg`.
    """

    def __init__(
        self,
        kernel: Any,  # noqa: ANN401
        grid: tuple[int, ...],
        scalars: Sequence[Scalar],
        constants: dict[str, Any],
        *,
        pdl: bool,
        **options: int,
    ) -> None:
        self._kernel = kernel
        self._grid = grid
        self._whole_grid = (*grid, 1, 1)[:3]
        self._scalars = tuple(scalars)
        self._named = constants | {"PDL": pdl} | options | ({"launch_pdl": True} if pdl else {})
        self._launches: dict[Hashable, _Kept] = {}
        self._specialised: tuple[int, ...] | None = None

    def __call__(self, *pointers: Tensor | View, **constants: int) -> None:
        """Launch on the current device's current stream.

        Args:
            pointers: of the same dtypes at every call.
            constants: those that follow from addresses.
        """
        if not (KEEPS and isinstance(self._kernel, JITFunction)) or _watched(self._kernel):
            self._by_triton(pointers, constants)
            return
        addresses = [pointer.data_ptr() for pointer in pointers]
        gpu = driver.active
        device = gpu.get_current_device()
        aligned = [addresses[i] % 16 == 0 for i in self._on_alignment(len(pointers))]
        where = (device, *aligned, *constants.values())
        kept = self._launches.get(where)
        if kept is None:
            key = self._form(pointers, where, tuple(constants))
            kept = _kept.get(key)
            if kept is None:
                compiled = self._by_triton(pointers, constants)
                # None where a hook keeps Triton from compiling.
                if isinstance(compiled, CompiledKernel):
                    _kept[key] = self._keep(compiled, len(pointers), constants)
                return
            self._launches[where] = kept
        compiled = kept.compiled
        compiled.run(
            *self._whole_grid, gpu.get_current_stream(device), compiled.function,
            compiled.packed_metadata, None, None, None, *addresses, *self._scalars, *kept.constants,
        )  # fmt: skip

    def _by_triton(self, pointers: Sequence[Tensor | View], constants: dict[str, int]) -> Any:  # noqa: ANN401
        tensors = [each.tensor() if isinstance(each, View) else each for each in pointers]
        return self._kernel[self._grid](*tensors, *self._scalars, **self._named, **constants)

    def _on_alignment(self, pointers: int) -> tuple[int, ...]:
        """Which pointers Triton specialises on alignment."""
        if self._specialised is None:
            self._specialised = tuple(
                i
                for i, each in enumerate(self._kernel.params[:pointers])
                if not (each.do_not_specialize or each.do_not_specialize_on_alignment)
            )
        return self._specialised

    def _form(
        self, pointers: Sequence[Tensor | View], where: Hashable, names: tuple[str, ...]
    ) -> Hashable:
        parameters = self._kernel.params[len(pointers) :]
        return (
            self._kernel,
            tuple(pointer.dtype for pointer in pointers),
            tuple(
                _kind(value, specialised=not each.do_not_specialize)
                for value, each in zip(self._scalars, parameters, strict=False)
            ),
            tuple(sorted(self._named.items())),
            names,
            where,
        )

    def _keep(self, compiled: Any, pointers: int, constants: dict[str, int]) -> _Kept:  # noqa: ANN401
        values = self._named | constants
        names = self._kernel.arg_names[pointers + len(self._scalars) :]
        return _Kept(compiled, tuple(values[name] for name in names))


def shared_step(value: Tensor, dims: int) -> int:
    """Bytes, at most 16, that every step in the first `dims` dims is a multiple of."""
    size = value.element_size()
    return math.gcd(16, *(size * stride for stride in value.stride()[:dims]))


def _kind(value: Scalar, *, specialised: bool) -> Hashable:
    """What Triton tells a scalar by: its type; of an integer that it specialises, the value."""
    if isinstance(value, float):
        return "fp32"
    if specialised:
        return value
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _watched(kernel: Any) -> bool:  # noqa: ANN401
    """Whether somebody wants to hear of every launch (a profiler, a test): Triton tells them."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(
        kernel.pre_run_hooks
        or (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )
