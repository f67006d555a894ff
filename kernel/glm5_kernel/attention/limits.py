"""Which models and caches the backend serves, and why not the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from glm5_kernel.ops.layouts import Fp8Layout

BLOCK_SIZE = 64
"""The block table is shared with the indexer's cache, which vLLM allows only this on CUDA."""
DETERMINISTIC_TOKENS = 1024
"""Tokens of one call where results must not depend on the batch: each then splits its work into as
many parts as a single token would, so a whole prefill at once would need a gigabyte."""
_LATENT = 512
_NAMES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Case:
    """What vLLM asks a backend about.

    Args:
        head_size: latent and rope dims together.
        kv_cache_dtype: vLLM's name; "auto" is the model's dtype.
        block_size: tokens of a block; None where nothing has been chosen yet.
    """

    head_size: int
    dtype: torch.dtype
    kv_cache_dtype: str
    capability: tuple[int, ...]
    block_size: int | None = None


def row_values(head_size: int, kv_cache_dtype: str) -> int:
    """Elements of one token's row in the cache: bytes for fp8_ds_mla, else values."""
    return Fp8Layout().row_bytes if kv_cache_dtype == "fp8_ds_mla" else head_size


def unsupported(case: Case, config: Any | None) -> str | None:  # noqa: ANN401
    """Why the backend does not serve this, or None where it does.

    Args:
        config: the `VllmConfig` of the model, where vLLM has one at this point.
    """
    if case.kv_cache_dtype.startswith("fp8") and case.kv_cache_dtype != "fp8_ds_mla":
        return f"a {case.kv_cache_dtype} KV cache: use --kv-cache-dtype fp8_ds_mla"
    wanted = _NAMES.get(case.kv_cache_dtype)
    if wanted is not None and wanted != case.dtype:
        return (
            f"a {case.kv_cache_dtype} KV cache under a {case.dtype} model: "
            "use --kv-cache-dtype auto or fp8_ds_mla"
        )
    if case.block_size is not None and case.block_size % BLOCK_SIZE:
        return f"blocks of {case.block_size} tokens: use --block-size {BLOCK_SIZE}"
    if case.kv_cache_dtype == "fp8_ds_mla" and case.head_size > _LATENT + 64:
        return f"fp8_ds_mla holds 512 + 64 values a token, not {case.head_size}"
    return None if config is None else _unsupported_model(config)


def _unsupported_model(config: Any) -> str | None:  # noqa: ANN401
    if config.parallel_config.decode_context_parallel_size > 1:
        return "decode context parallelism is not supported"
    if config.model_config is None:
        return None
    model = config.model_config.hf_text_config
    if not hasattr(model, "index_topk"):
        return "the model has no index_topk"
    latent, rope = getattr(model, "kv_lora_rank", 0), getattr(model, "qk_rope_head_dim", 0)
    if latent not in (128, 256, 384, 512):
        return f"kv_lora_rank {latent} is none of 128, 256, 384 and 512"
    if rope not in (0, 16, 32, 64, 128):
        return f"qk_rope_head_dim {rope} is none of 0, 16, 32, 64 and 128"
    heads = model.num_attention_heads // config.parallel_config.tensor_parallel_size
    return f"{heads} heads a rank are more than 128" if heads > 128 else None
