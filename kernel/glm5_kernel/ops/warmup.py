"""Compile the kernels in every form that a server may need, before it serves.

A form that is met first while serving is compiled then, and every request waits for it: a second or
two each. Forms follow from the shapes of a call; here each is called once with a token or two that
have nothing to read. Triton keeps what it compiled on disk, so a later start finds it there.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from glm5_kernel.ops.configs import Kv, Plan, plan
from glm5_kernel.ops.indexer_configs import PAGED, topk_forms
from glm5_kernel.ops.indexer_logits import PAGE, mqa_logits, paged_mqa_logits
from glm5_kernel.ops.layouts import Fp8Layout
from glm5_kernel.ops.sparse_mla import device_table, sparse_mla
from glm5_kernel.ops.topk import topk_indices


def attention_plans(
    device: torch.device, kv: Kv, max_tokens: int, heads: int, topk: int, *, deterministic: bool
) -> list[Plan]:
    """A plan of each form among calls of up to `max_tokens` tokens."""
    arch, hardware = device_table(device)
    found: dict[tuple[object, ...], Plan] = {}
    for tokens in range(1, max_tokens + 1):
        chosen = plan(arch, kv, tokens, heads, topk, hardware, deterministic=deterministic)
        padded = 1 << (chosen.parts - 1).bit_length()
        found.setdefault((chosen.config, chosen.spans, padded), chosen)
    return list(found.values())


def warm_attention(
    max_tokens: int,
    heads: int,
    topk: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    fp8: bool,
    latent_dim: int = 512,
    rope_dim: int = 64,
    deterministic: bool = False,
) -> int:
    """Compile `sparse_mla` for a server.

    Args:
        max_tokens: of a batch.
        heads: query heads of a rank.
        topk: width of the indices.
        dtype: of queries, and of the KV cache where it is not fp8.
        fp8: whether the KV cache is fp8_ds_mla.

    Returns:
        Forms that were called.
    """
    plans = attention_plans(
        device, "fp8" if fp8 else "16bit", max_tokens, heads, topk, deterministic=deterministic
    )
    q = torch.zeros(1, heads, latent_dim + rope_dim, dtype=dtype, device=device)
    row = Fp8Layout(latent_dim, rope_dim).row_bytes if fp8 else latent_dim + rope_dim
    # A layer's blocks one after the other, or beside those of other layers.
    layers = torch.zeros(2, 2, PAGE, row, dtype=torch.uint8 if fp8 else dtype, device=device)
    caches = (layers[0], layers[:, 0])
    indices = torch.full((1, topk), -1, dtype=torch.int32, device=device)
    nothing = torch.zeros(1, 4, dtype=torch.int32, device=device)
    for cache, chosen in itertools.product(caches, plans):
        sparse_mla(
            q, cache, indices, 1.0, latent_dim=latent_dim, rope_dim=rope_dim,
            block_table=nothing, request_ids=nothing[0, :1], lengths=nothing[0, :1],
            force_plan=chosen,
        )  # fmt: skip
    return len(caches) * len(plans)


def warm_indexer(
    max_rows: int,
    max_context: int,
    max_keys: int,
    heads: int,
    topk: int,
    next_n: int,
    device: torch.device,
    *,
    workspace: Tensor | None = None,
) -> int:
    """Compile the indexer's kernels for a server.

    Args:
        max_rows: tokens of a batch.
        max_context: columns of decoded tokens' scores.
        max_keys: the most keys of a prefill's chunk.
        heads: of the indexer.
        next_n: the most tokens that a request decodes at a time.
        workspace: the top-k's, see `topk_indices`.

    Returns:
        Forms that were called.
    """
    # The kernel takes a power of two at a time; requests with fewer drafts than usual take fewer.
    counts = [1 << power for power in range((next_n - 1).bit_length() + 1)]
    called = _warm_logits(heads, counts, device)
    arch, hardware = device_table(device)
    ends = torch.zeros(1, 1, dtype=torch.int32, device=device)
    for starts, longest in ((None, max_context), (ends[0], max_keys)):
        for width, chosen in topk_forms(arch, max_rows, longest, hardware.processors):
            some = torch.zeros(1, width, dtype=torch.float32, device=device)
            last = ends if starts is None else ends[0]
            topk_indices(
                some, topk, starts=starts, ends=last, workspace=workspace, force_plan=chosen
            )
            called += 1
    return called


def _warm_logits(heads: int, tokens: list[int], device: torch.device) -> int:
    """Scores of no key, for decoded tokens and for a prefill."""
    none = torch.zeros(1, 4, dtype=torch.int32, device=device)
    cache = torch.zeros(1, PAGE, 132, dtype=torch.uint8, device=device)
    zeros, e4m3 = torch.zeros(1, 128, dtype=torch.uint8, device=device), torch.float8_e4m3fn
    scale = torch.zeros(1, dtype=torch.float32, device=device)
    configs = PAGED[device_table(device)[0]]
    for count in tokens:
        q = zeros.repeat(1, count, heads, 1).view(e4m3)
        weights = scale.repeat(count, heads)
        lengths = torch.zeros(1, count, dtype=torch.int32, device=device)
        for config in configs:
            paged_mqa_logits(
                q, cache, weights, lengths, none, max_context=PAGE, force_config=config
            )
    q, weights = zeros.repeat(1, heads, 1).view(e4m3), scale.repeat(1, heads)
    mqa_logits(q, zeros.view(e4m3), scale, weights, none[0, :1], none[0, :1])
    return len(tokens) * len(configs) + 1
