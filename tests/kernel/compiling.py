"""Kernels compiled beside the tests, in processes where nothing is interpreted."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def compiled(
    request: pytest.FixtureRequest, compile_case: Callable[[Any], Any]
) -> Iterator[dict[Any, Future[Any]]]:
    """The cases of the module's tests that were selected, all of them under way.

    One process where pytest itself has several, else two.
    """
    interpret = os.environ.pop("TRITON_INTERPRET", None)
    context = multiprocessing.get_context("spawn")
    workers = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            yield {case: pool.submit(compile_case, case) for case in _cases_of(request)}
            pool.shutdown(cancel_futures=True)
    finally:
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret


def _cases_of(request: pytest.FixtureRequest) -> Iterator[Any]:
    for item in request.session.items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path == request.path and "case" in given:
            yield given["case"]
