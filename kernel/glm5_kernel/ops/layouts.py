"""The packed fp8_ds_mla KV layout: bytes, packing and unpacking in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
"""Latent values that share one scale."""

E4M3_MAX = 448.0


@dataclass(frozen=True)
class Fp8Layout:
    """Bytes of one KV row in fp8_ds_mla.

    | bytes (512 + 64)  | what                                                    |
    | ----------------- | ------------------------------------------------------- |
    | 0 – 511           | `latent_dim` e4m3 values                                |
    | 512 – 527         | one float32 scale (little endian) per 128 latent values |
    | 528 – 655         | `rope_dim` bfloat16 values, not quantised               |

    A model without a rope part keeps the 656-byte row of 512 + 64 and leaves the last bytes unused,
    so a row may be longer than `row_bytes`.
    """

    latent_dim: int = 512
    rope_dim: int = 64

    @property
    def groups(self) -> int:
        return self.latent_dim // GROUP

    @property
    def scale_at(self) -> int:
        return self.latent_dim

    @property
    def rope_at(self) -> int:
        return self.latent_dim + 4 * self.groups

    @property
    def row_bytes(self) -> int:
        return self.rope_at + 2 * self.rope_dim


def pack_fp8(kv: Tensor, layout: Fp8Layout, row_bytes: int | None = None) -> Tensor:
    """Quantise KV rows as vLLM writes them: scale = amax / 448 per group of 128.

    Args:
        kv: [..., latent_dim + rope_dim], any floating dtype.
        layout: the dims.
        row_bytes: length of a packed row; unused bytes are zero. Default: `layout.row_bytes`.

    Returns:
        [..., row_bytes] uint8.
    """
    latent, rope = kv[..., : layout.latent_dim], kv[..., layout.latent_dim :]
    groups = latent.float().reshape(*latent.shape[:-1], layout.groups, GROUP)
    scales = (groups.abs().amax(-1) / E4M3_MAX).clamp_min(1e-12)
    values = (groups / scales.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn)
    return assemble_fp8(values, scales, rope, layout, row_bytes)


def assemble_fp8(
    values: Tensor,
    scales: Tensor,
    rope: Tensor,
    layout: Fp8Layout,
    row_bytes: int | None = None,
) -> Tensor:
    """Lay out already quantised parts; scales may be any float32, not only powers of two.

    Args:
        values: [..., latent_dim] float8_e4m3fn.
        scales: [..., latent_dim / 128] float32.
        rope: [..., rope_dim], stored as bfloat16.
        layout: the dims.
        row_bytes: length of a packed row; default `layout.row_bytes`.

    Returns:
        [..., row_bytes] uint8.
    """
    size = row_bytes or layout.row_bytes
    rows = torch.zeros((*values.shape[:-1], size), dtype=torch.uint8, device=values.device)
    rows[..., : layout.scale_at] = values.contiguous().view(torch.uint8)
    rows[..., layout.scale_at : layout.rope_at] = scales.float().contiguous().view(torch.uint8)
    if layout.rope_dim:
        packed_rope = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
        rows[..., layout.rope_at : layout.row_bytes] = packed_rope
    return rows


def unpack_fp8(rows: Tensor, layout: Fp8Layout, dtype: torch.dtype = torch.float64) -> Tensor:
    """Dequantise packed rows: [..., row_bytes] uint8 to [..., latent_dim + rope_dim] in `dtype`."""
    values = rows[..., : layout.scale_at].contiguous().view(torch.float8_e4m3fn).to(dtype)
    scales = rows[..., layout.scale_at : layout.rope_at].contiguous().view(torch.float32).to(dtype)
    groups = values.reshape(*values.shape[:-1], layout.groups, GROUP)
    latent = (groups * scales.unsqueeze(-1)).flatten(-2)
    rope = rows[..., layout.rope_at : layout.row_bytes].contiguous().view(torch.bfloat16)
    return torch.cat([latent, rope.to(dtype)], dim=-1)
