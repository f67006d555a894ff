"""What follows from the form of a call's arguments: found out once, not at every call.

A server makes the same call for every layer, and while it prefills the processor's time is what a
step takes. Checks, plans, grids and strides follow from shapes; only addresses differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

MOST_FORMS = 1024
"""Forms that are remembered of a function's calls."""

_remembered: list[dict[Any, Any]] = []


def once_per_form(find: Callable[P, T]) -> Callable[P, T]:
    """Call `find` once for each form of its arguments, and give the same result from then on.

    The form: shape, strides, dtype and device of tensors; everything else as it is, so it must be
    hashable. `find` may look at nothing else of a tensor, its address least of all, and its result
    may hold no tensor. What raises is not remembered. At `MOST_FORMS` all are forgotten.
    """
    known: dict[Hashable, T] = {}
    _remembered.append(known)

    @functools.wraps(find)
    def found(*values: P.args, **options: P.kwargs) -> T:
        key = (*map(form, values), *map(form, options.items()))
        try:
            return known[key]
        except KeyError:
            pass
        result = find(*values, **options)
        if len(known) >= MOST_FORMS:
            known.clear()
        known[key] = result
        return result

    return found


def form(value: object) -> Hashable:
    """What `once_per_form` tells an argument by; of a tuple, what it tells each of its items by."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    return tuple(map(form, value)) if isinstance(value, tuple) else value


def forget() -> None:
    """Forget all results: for tests that replace what those follow from."""
    for known in _remembered:
        known.clear()
