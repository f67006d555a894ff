"""GLM-5 as a dense model, for vLLM on the CPU, which has no sparse attention.

The indexer selects `index_topk` tokens of a request's past. While the past is no longer than that
it selects all of them, and sparse attention is dense attention. So where `max_model_len` allows no
more, the model is built without its indexer: the same function, its weights unused.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from transformers import PretrainedConfig

logger = logging.getLogger("vllm.glm5_kernel")

MODEL_TYPE = "glm_moe_dsa"
INDEXER_KEYS = frozenset({"index_topk", "index_topk_pattern", "index_topk_freq"})
"""By these vLLM takes a model for a sparse one (deepseek_v2.py, 0.32)."""


class TooLongError(ValueError):
    """A context in which the indexer would select."""


class DenseConfig(PretrainedConfig):
    """A `glm_moe_dsa` config that has no `index_topk`, which transformers' own always has."""

    model_type = MODEL_TYPE
    attribute_map: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}


def make_dense(vllm_config: Any) -> None:  # noqa: ANN401
    """Change vLLM's config of a GLM-5 in place, before its model is made; others stay as they are.

    Raises:
        TooLongError: `max_model_len` is more than the indexer selects.
    """
    model = vllm_config.model_config
    if model is None or not is_sparse(model.hf_config):
        return
    topk = model.hf_config.index_topk
    if model.max_model_len > topk:
        raise TooLongError(too_long(model.max_model_len, topk))
    model.hf_config = model.hf_text_config = dense_config(model.hf_config)
    logger.info(
        "glm5_kernel: dense attention on the CPU: within max_model_len %d the indexer would select "
        "every token (index_topk %d)", model.max_model_len, topk,
    )  # fmt: skip
    _choose_backend(vllm_config)
    _plain_rope(vllm_config.compilation_config.custom_ops)


def is_sparse(config: Any) -> bool:  # noqa: ANN401
    """Whether vLLM would build the model of an HF config with an indexer."""
    return config.model_type == MODEL_TYPE and hasattr(config, "index_topk")


def is_dense(config: Any) -> bool:  # noqa: ANN401
    """Whether `make_dense` has been there."""
    return isinstance(config, DenseConfig)


def too_long(max_model_len: int, topk: int) -> str:
    """Why a context is refused, and what would be right."""
    return (
        f"GLM-5 on vLLM for the CPU: max_model_len is {max_model_len}, but there is no sparse "
        f"attention on the CPU, and beyond index_topk ({topk}) tokens dense attention is another "
        f"function; set --max-model-len to {topk} or less, or serve it on a GPU"
    )


def dense_config(config: PretrainedConfig) -> DenseConfig:
    """The same config without its indexer."""
    made = DenseConfig()
    made.__dict__.update(
        {key: value for key, value in vars(config).items() if key not in INDEXER_KEYS}
    )
    return made


def _choose_backend(vllm_config: Any) -> None:  # noqa: ANN401
    """CPU_MLA where nothing else was asked for.

    What vLLM prefers on processors with AMX computes in bfloat16 alone.
    """
    import torch
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention = vllm_config.attention_config
    if attention.backend is None and vllm_config.model_config.dtype != torch.bfloat16:
        attention.backend = AttentionBackendEnum.CPU_MLA


def _plain_rope(custom_ops: list[str]) -> None:
    """RoPE by torch: 0.32.0's CPU kernel turns the wrong values of interleaved heads [T, H, D]."""
    custom_ops[:] = [each for each in custom_ops if each != "+rotary_embedding"]
    if "-rotary_embedding" not in custom_ops:
        custom_ops.append("-rotary_embedding")
