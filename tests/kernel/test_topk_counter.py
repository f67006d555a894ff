"""What a counter came to gets a register of its own, beside the counter's address."""
# Triton kernels: tensors have no Python type.
# ruff: noqa: ANN001

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import triton
import triton.language as tl
from glm5_kernel.ops.topk_kernel import _count, _counter
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernel.compiling import compiled


@triton.jit
def chained_kernel(p_out, n) -> None:
    """The worst for it: each count is the next one's address, which nobody needs any more."""
    counter = _counter(p_out)
    for _ in range(n):
        counter = _count(counter, False)
    tl.store(p_out, counter)


def registers(case: str) -> tuple[str, str]:
    """Of a count and of its counter's address, as compiled for a GPU."""
    source = ASTSource(chained_kernel, {"p_out": "*i32", "n": "i32"})
    target = GPUTarget("cuda", int(case.removeprefix("sm")), 32)
    text = triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    ((count, address),) = re.findall(r"ld\.shared\.b32 (%r\d+), \[(%r\d+)\];", text)
    return count, address


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[str, str]]]]:
    with compiled(request, registers) as under_way:
        yield under_way


@pytest.mark.parametrize("case", ["sm90", "sm120"])
def test_a_count_does_not_overwrite_its_address(
    case: str, found: dict[str, Future[tuple[str, str]]]
) -> None:
    count, address = found[case].result()
    assert count != address
