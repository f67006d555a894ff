"""Whose whole pasts a buffer holds."""

from __future__ import annotations

import gc
from weakref import ref

import torch
from glm5_kernel.indexer.whole import WholePasts


class Thing:
    """A forward context, a batch's metadata or a layer."""

    def __init__(self, **layers: Thing) -> None:
        self.no_compile_layers = layers


def test_a_step_that_is_over_is_not_kept() -> None:
    """A forward context leads to every layer, so to weights and KV caches."""
    held, buffer = WholePasts(), torch.zeros(4)
    layer, metadata = Thing(), Thing()
    context = Thing(first=layer)
    assert not held.hold(buffer, (context, metadata))
    assert held.hold(buffer, (context, metadata))
    left = ref(layer), ref(metadata)
    del context, layer, metadata
    gc.collect()
    assert [each() for each in left] == [None, None]


def test_a_step_at_the_address_of_one_that_is_over_is_another() -> None:
    held, buffer, metadata = WholePasts(), torch.zeros(4), Thing()
    seen = set()
    for _ in range(50):
        context = Thing()
        seen.add(id(context))
        assert not held.hold(buffer, (context, metadata))
        del context
    assert len(seen) < 50, "no address came again: this has shown nothing"


def test_two_buffers_and_something_else_in_one() -> None:
    held, step = WholePasts(), (Thing(), Thing())
    one, other = torch.zeros(4), torch.zeros(4)
    assert not held.hold(one, step)
    assert not held.hold(other, step)
    held.forget(one)
    assert not held.hold(one, step)
    assert held.hold(other, step)
