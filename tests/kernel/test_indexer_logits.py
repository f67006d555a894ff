"""The indexer's scores against the float64 reference, on small shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from glm5_kernel.ops.indexer_configs import PAGED, PREFILL
from glm5_kernel.ops.indexer_logits import mqa_logits, paged_mqa_logits
from glm5_kernel.ops.indexer_reference import pack_cache, scores_reference, unpack_cache

from tests.kernel.indexer_support import (
    DEVICE,
    POISON,
    Paged,
    check_paged,
    check_prefill,
    paged_arguments,
    prefill_arguments,
    random_e4m3,
)

SHAPES = {
    "one request": Paged(batch=1, context=1),
    "a page and one": Paged(context=65),
    "64 heads": Paged(heads=64, batch=1),
    "four heads": Paged(heads=4),
    "128 heads, two tokens": Paged(heads=128, next_n=2, batch=1, context=70),
    "two tokens, the last one's length": Paged(next_n=2),
    "three tokens, each one's length": Paged(next_n=3, per_row=True),
    "four tokens, each one's length": Paged(next_n=4, per_row=True, context=90),
    "five tokens in two groups": Paged(next_n=5, batch=1, context=80),
    "blocks apart": Paged(gap=64),
    "blocks apart, at multiples of four bytes": Paged(gap=4, four_dims=True),
    "long": Paged(batch=1, context=1500, blocks=30),
}


@pytest.mark.parametrize("name", SHAPES)
def test_paged_equals_the_reference(name: str) -> None:
    check_paged(paged_arguments(SHAPES[name]))


@pytest.mark.parametrize("arch", sorted(PAGED))
def test_every_paged_configuration(arch: str) -> None:
    for config in PAGED[arch]:
        check_paged(paged_arguments(Paged(next_n=2, context=300)), force_config=config)


@pytest.mark.parametrize(
    ("rows", "keys", "heads"), [(1, 1, 32), (3, 130, 64), (70, 260, 32), (5, 40, 4)]
)
def test_prefill_equals_the_reference(rows: int, keys: int, heads: int) -> None:
    check_prefill(prefill_arguments(rows, keys, heads))


@pytest.mark.parametrize("arch", sorted(PREFILL))
def test_every_prefill_configuration(arch: str) -> None:
    check_prefill(prefill_arguments(9, 150), force_config=PREFILL[arch])


def test_tiles_outside_of_every_range_are_skipped() -> None:
    arguments = prefill_arguments(8, 600)
    arguments["starts"].fill_(10)
    arguments["ends"].fill_(20)
    out = mqa_logits(**arguments, out=torch.full((8, 600), POISON, device=DEVICE))
    assert bool((out[:, 512:] == POISON).all())


def test_garbage_in_padded_rows_does_no_harm() -> None:
    arguments = paged_arguments(Paged(batch=4, context=100))
    arguments["context_lens"][2] = -(2**31)
    arguments["context_lens"][3] = 2**31 - 1
    arguments["block_tables"][2:] = torch.tensor([-1, 2**31 - 1], dtype=torch.int32)
    out = torch.full((4, 105), POISON, device=DEVICE)
    paged_mqa_logits(**arguments, out=out)
    assert bool((out[2] == POISON).all())
    assert bool((out[3] == 0).all())


def test_a_negative_product_counts_nothing() -> None:
    q = torch.ones(1, 32, 128, device=DEVICE).to(torch.float8_e4m3fn)
    k = torch.tensor([[1.0], [-1.0]], device=DEVICE).expand(2, 128).to(torch.float8_e4m3fn)
    row = torch.ones(1, dtype=torch.int32, device=DEVICE)
    one = torch.ones(2, device=DEVICE)
    out = mqa_logits(q, k, one, torch.ones(1, 32, device=DEVICE), row - 1, row + 1)
    assert out.tolist() == [[32 * 128.0, 0.0]]


def test_cache_layout_is_values_then_scales() -> None:
    values, scales = random_e4m3(2, 64, 128), torch.rand(2, 64, device=DEVICE)
    packed = pack_cache(values, scales)
    block = packed[1].reshape(-1)
    assert torch.equal(block[:128], values[1, 0].view(torch.uint8))
    assert torch.equal(block[64 * 128 :].clone().view(torch.float32), scales[1])
    got, got_scales = unpack_cache(packed)
    assert torch.equal(got.view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(got_scales, scales)


def test_the_reference_is_the_formula() -> None:
    q, k = random_e4m3(2, 4, 128), random_e4m3(3, 128)
    scale, weights = torch.rand(3, device=DEVICE), torch.randn(2, 4, device=DEVICE)
    got = scores_reference(q, k, scale, weights)
    for m in range(2):
        for n in range(3):
            total = 0.0
            for h in range(4):
                product = float((q[m, h].float() * k[n].float()).sum())
                total += float(weights[m, h]) * max(product, 0.0)
            assert float(got[m, n]) == pytest.approx(total * float(scale[n]), rel=1e-4, abs=1e-3)


WRONG_PAGED = {
    "q: got float32; allowed: float8_e4m3fn": {"q": torch.zeros(2, 1, 32, 128)},
    "q: got last dim 64; allowed: 128": {"q": torch.zeros(2, 1, 32, 64).to(torch.float8_e4m3fn)},
    "q: got 33 heads": {"q": torch.zeros(2, 1, 33, 128).to(torch.float8_e4m3fn)},
    "kv_cache: got shape [4, 32, 132]": {"kv_cache": torch.zeros(4, 32, 132, dtype=torch.uint8)},
    "kv_cache: got float32; allowed: uint8": {"kv_cache": torch.zeros(4, 64, 132)},
    "weights: got shape [1, 32]; allowed: [2, 32]": {"weights": torch.zeros(1, 32)},
    "context_lens: got shape [3]": {"context_lens": torch.zeros(3, dtype=torch.int32)},
    "context_lens: got int64": {"context_lens": torch.zeros(2, dtype=torch.int64)},
    "block_tables: got shape [3, 4]": {"block_tables": torch.zeros(3, 4, dtype=torch.int32)},
    "out: got shape [2, 3]": {"out": torch.zeros(2, 3)},
}


@pytest.mark.parametrize("message", WRONG_PAGED)
def test_a_wrong_paged_argument_is_named(message: str) -> None:
    arguments: dict[str, Any] = paged_arguments(Paged())
    wrong = {name: value.to(DEVICE) for name, value in WRONG_PAGED[message].items()}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        paged_mqa_logits(**(arguments | wrong))
    assert str(caught.value).startswith(message)


WRONG_PREFILL = {
    "k: got shape [7, 64]; allowed: [N, 128]": {"k": torch.zeros(7, 64).to(torch.float8_e4m3fn)},
    "k_scale: got shape [6]; allowed: [7]": {"k_scale": torch.zeros(6)},
    "starts: got shape [2]; allowed: [3]": {"starts": torch.zeros(2, dtype=torch.int32)},
    "ends: got int64; allowed: int32": {"ends": torch.zeros(3, dtype=torch.int64)},
}


@pytest.mark.parametrize("message", WRONG_PREFILL)
def test_a_wrong_prefill_argument_is_named(message: str) -> None:
    arguments: dict[str, Any] = prefill_arguments(3, 7)
    wrong = {name: value.to(DEVICE) for name, value in WRONG_PREFILL[message].items()}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        mqa_logits(**(arguments | wrong))
    assert str(caught.value).startswith(message)
