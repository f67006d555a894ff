"""Wrong arguments: a ValueError that names the argument, what came and what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from glm5_kernel.ops.merge import merge_partials
from glm5_kernel.ops.sparse_mla import sparse_mla
from torch import Tensor

from tests.kernel.support import DEVICE, Call, Shape, random_call, random_int


def replaced(name: str, make: Callable[[Call], Tensor]) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        if name in ("q", "kv_cache", "indices"):
            setattr(call, name, make(call))
        else:
            call.options[name] = make(call)

    return change


WRONG = {
    "q: got 2 dims; allowed: 3": replaced("q", lambda c: c.q[0]),
    "q: got shape [3, 8, 575]; allowed: [3, 8, 576]": replaced("q", lambda c: c.q[..., :575]),
    "q: got float32; allowed: bfloat16 or float16": replaced("q", lambda c: c.q.float()),
    "q: got 129 heads; allowed: 1 to 128 heads": replaced(
        "q", lambda c: c.q.repeat(1, 17, 1)[:, :129]
    ),
    "q: got strides (4608, 1, 8)": replaced("q", lambda c: c.q.mT.contiguous().mT),
    "kv_cache: got 2 dims; allowed: 3": replaced("kv_cache", lambda c: c.kv_cache[0]),
    "kv_cache: got float16; allowed: bfloat16 or uint8": replaced(
        "kv_cache", lambda c: c.kv_cache.half()
    ),
    "kv_cache: got rows of 512; allowed: 576": replaced(
        "kv_cache", lambda c: c.kv_cache[..., :512]
    ),
    "kv_cache: got rows of 655 bytes; allowed: at least 656": replaced(
        "kv_cache", lambda _: torch.zeros(2, 16, 655, dtype=torch.uint8, device=DEVICE)
    ),
    "rows at multiples of 4 bytes": replaced(
        "kv_cache", lambda _: torch.zeros(2, 16, 657, dtype=torch.uint8, device=DEVICE)
    ),
    "indices: got int64; allowed: int32": replaced("indices", lambda c: c.indices.long()),
    "indices: got no column; allowed: at least one": replaced(
        "indices", lambda c: c.indices[:, :0]
    ),
    "indices: got shape [2, 70]; allowed: [3, 70]": replaced("indices", lambda c: c.indices[:2]),
    "indices: got strides": replaced("indices", lambda c: c.indices.mT.contiguous().mT),
    "lengths: got shape [2]; allowed: [3]": replaced("lengths", lambda _: random_int(0, 9, (2,))),
    "request_ids: got one of the two": replaced("block_table", lambda _: random_int(0, 9, (2, 4))),
    "latent_dim: got 100; allowed: 128, 256, 384 or 512": lambda c: c.options.update(
        latent_dim=100
    ),
    "rope_dim: got 48; allowed: 0, 16, 32, 64 or 128": lambda c: c.options.update(rope_dim=48),
    "out: got shape [1]; allowed: [3, 8, 512]": replaced("out", lambda c: c.q.new_empty(1)),
    "out: got float32; allowed: bfloat16": replaced(
        "out", lambda c: c.q.new_empty(3, 8, 512, dtype=torch.float32)
    ),
    "lse: got bfloat16; allowed: float32": replaced("lse", lambda c: c.q.new_empty(3, 8)),
    "out: got strides": replaced("out", lambda c: c.q.new_empty(3, 512, 8).mT),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_argument(message: str) -> None:
    call = random_call(Shape())
    WRONG[message](call)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call.run()
    assert message in str(error.value)


def test_workspace_too_small() -> None:
    call = random_call(Shape(topk=100))
    space = torch.zeros(16, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(ValueError, match="workspace: got 16 bytes; allowed: at least"):
        call.run(workspace=space, deterministic=True)


def test_request_ids_without_a_block_table() -> None:
    call = random_call(Shape())
    with pytest.raises(ValueError, match="block_table and request_ids together"):
        call.run(request_ids=random_int(0, 3, (3,)))


def test_slots_beyond_32_bits_with_a_block_table() -> None:
    call = random_call(Shape())
    call.kv_cache = call.kv_cache[:1].expand(2**31 // call.kv_cache.shape[1], -1, -1)
    table = {"block_table": random_int(0, 9, (3, 4)), "request_ids": random_int(0, 3, (3,))}
    with pytest.raises(ValueError, match="kv_cache: got 2147483648 slots; allowed: fewer than"):
        call.run(**table)


def test_pair_of_queries_that_do_not_match() -> None:
    call = random_call(Shape())
    pair = (call.q[..., :512], call.q[:, :4, 512:])
    with pytest.raises(ValueError, match=r"q \(rope\): got shape \[3, 4, 64\]"):
        sparse_mla(pair, call.kv_cache, call.indices, 1.0)


@pytest.mark.parametrize(
    ("outs", "lses", "message"),
    [
        ((2, 3, 8), (2, 3), "outs: got 3 dims"),
        ((2, 3, 8, 100), (2, 3, 8), "outs: got D = 100"),
        ((0, 3, 8, 128), (0, 3, 8), "outs: got no shard"),
        ((2, 3, 8, 128), (2, 3, 9), "lses: got shape [2, 3, 9]; allowed: [2, 3, 8]"),
    ],
)
def test_shards_that_do_not_fit(outs: tuple[int, ...], lses: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        merge_partials(
            torch.zeros(outs, dtype=torch.bfloat16, device=DEVICE),
            torch.zeros(lses, device=DEVICE),
        )
    assert message in str(error.value)
