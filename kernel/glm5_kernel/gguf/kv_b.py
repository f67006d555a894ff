"""kv_b_proj from k_b and v_b.

`kv_b_proj.weight` is [heads * (nope + v), kv_lora]; a file holds k_b transposed, as [heads,
kv_lora, nope], and v_b as [heads, v, kv_lora]. The transpose crosses quantisation blocks, so both
are decoded first. Heads are outermost in all three, so a rank's heads are cut out before that.
Files with two dimensions hold the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glm5_kernel.gguf.decoding import Floats
from glm5_kernel.gguf.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class Heads:
    """A rank's heads: first, and one past the last."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first


def heads_of(rows: tuple[int, int], hp: Hyperparameters) -> Heads:
    """The heads whose rows of kv_b_proj are these.

    Raises:
        ValueError: the rows begin or end within a head.
    """
    per_head = hp.nope + hp.v
    if rows[0] % per_head or rows[1] % per_head:
        raise ValueError(f"rows {rows[0]} to {rows[1]} of kv_b_proj are no whole heads")
    return Heads(rows[0] // per_head, rows[1] // per_head)


def k_rows(heads: Heads, hp: Hyperparameters) -> tuple[int, int]:
    """The rows of k_b, each of `nope` values, that hold these heads."""
    return heads.first * hp.kv_lora, heads.last * hp.kv_lora


def v_rows(heads: Heads, hp: Hyperparameters) -> tuple[int, int]:
    """The rows of v_b, each of `kv_lora` values, that hold these heads."""
    return heads.first * hp.v, heads.last * hp.v


def assemble(k: Floats, v: Floats, hp: Hyperparameters) -> Floats:
    """Rows of kv_b_proj from the same heads of k_b and v_b.

    Args:
        k: float32, heads * kv_lora * nope values.
        v: float32, heads * v * kv_lora values.
        hp: the model's.

    Returns:
        float32 [heads * (nope + v), kv_lora].
    """
    keys = k.reshape(-1, hp.kv_lora, hp.nope)
    values = v.reshape(-1, hp.v, hp.kv_lora)
    heads = keys.shape[0]
    out = np.empty((heads, hp.nope + hp.v, hp.kv_lora), dtype=np.float32)
    out[:, : hp.nope] = keys.transpose(0, 2, 1)
    out[:, hp.nope :] = values
    return out.reshape(-1, hp.kv_lora)
