"""Whose whole pasts a buffer holds: all layers of a step would write the same."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import Tensor

Step = tuple[Any, Any]
"""A forward context and a batch's metadata in it: half of a batch may take turns with the other."""


class WholePasts:
    """Notes which step's were last written to each buffer, by its address."""

    def __init__(self) -> None:
        # Not their addresses, which come again; nor the objects themselves: a forward context of
        # vLLM leads to every layer, and would keep weights and KV caches once the model is gone.
        self._held: dict[int, tuple[ref[Any], ...]] = {}

    def hold(self, buffer: Tensor, step: Step) -> bool:
        """Whether the buffer held the step's already; it will, either way."""
        address = buffer.data_ptr()
        held = self._held.get(address)
        if held and all(kept() is now for kept, now in zip(held, step, strict=True)):
            return True
        self._held[address] = tuple(ref(each) for each in step)
        return False

    def forget(self, buffer: Tensor) -> None:
        """Something else is about to be written to it."""
        self._held.pop(buffer.data_ptr(), None)
