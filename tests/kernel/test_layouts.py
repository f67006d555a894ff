"""The packed layout, byte by byte."""

from __future__ import annotations

import pytest
import torch
from glm5_kernel.ops.layouts import Fp8Layout, assemble_fp8, pack_fp8, unpack_fp8


def test_bytes_of_a_row() -> None:
    layout = Fp8Layout()
    values = torch.zeros(1, 512).to(torch.float8_e4m3fn)
    values[0, 3] = 1.0
    scales = torch.tensor([[1.0, 2.0, 3.0, 0.3]])
    rope = torch.zeros(1, 64)
    rope[0, 1] = -2.0
    row = assemble_fp8(values, scales, rope, layout)[0]
    assert layout.row_bytes == len(row) == 656
    assert row[3] == 0x38  # 1.0 in e4m3
    assert row[516:520].tolist() == [0, 0, 0, 0x40]  # 2.0 in float32
    assert row[530:532].tolist() == [0, 0xC0]  # -2.0 in bfloat16


@pytest.mark.parametrize(
    ("latent", "rope", "size"), [(512, 64, 656), (256, 64, 392), (512, 0, 528)]
)
def test_packing_keeps_three_bits_of_mantissa(latent: int, rope: int, size: int) -> None:
    layout = Fp8Layout(latent, rope)
    kv = torch.randn(5, 7, latent + rope)
    rows = pack_fp8(kv, layout)
    assert rows.shape == (5, 7, size)
    unpacked = unpack_fp8(rows, layout)
    scale = kv[..., :latent].unflatten(-1, (-1, 128)).abs().amax(-1, keepdim=True)
    error = (unpacked - kv)[..., :latent].unflatten(-1, (-1, 128)).abs() / scale
    assert error.max() < 2**-4
    assert torch.equal(unpacked[..., latent:], kv[..., latent:].bfloat16().double())


def test_a_longer_row_is_left_unused() -> None:
    rows = pack_fp8(torch.randn(2, 512), Fp8Layout(512, 0), row_bytes=656)
    assert rows.shape == (2, 656)
    assert not rows[:, 528:].any()
    assert unpack_fp8(rows, Fp8Layout(512, 0)).shape == (2, 512)


def test_a_group_of_zeros_stays_zero() -> None:
    assert not unpack_fp8(pack_fp8(torch.zeros(1, 576), Fp8Layout()), Fp8Layout()).any()
