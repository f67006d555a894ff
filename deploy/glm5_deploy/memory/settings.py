"""What a profile's serve arguments say about memory, with vLLM's defaults for the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glm5_deploy.memory import constants as known

KvDtype = Literal["bf16", "fp8"]

_UNITS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}
"""As vLLM reads numbers: ``128k`` is 128,000 and ``128K`` is 131,072
(vllm/engine/arg_utils.py, `human_readable_int`)."""


@dataclass(frozen=True)
class Settings:
    """Arguments of the server that decide about memory.

    Args:
        tp: GPUs that share the model.
        context: tokens of the longest request.
        sequences: requests in one batch.
        batched_tokens: tokens in one batch.
        utilization: share of the GPU that vLLM takes.
        kv_dtype: of the KV cache: ``bf16`` stands for any two bytes.
        kv_bytes: of the KV cache where they are fixed; else 0.
        eager: without CUDA graphs.
        mtp: with speculative decoding by the model's own MTP block.
        auto: vLLM takes the longest context that fits, up to `context`.
    """

    tp: int
    context: int
    sequences: int
    batched_tokens: int
    utilization: float = known.UTILIZATION
    kv_dtype: KvDtype = "bf16"
    kv_bytes: int = 0
    block: int = known.BLOCK
    eager: bool = False
    mtp: bool = False
    auto: bool = False


class UnplannedError(ValueError):
    """The arguments say something that this plan does not know."""


def read_settings(arguments: Mapping[str, Any], *, context: int, gpu_bytes: int) -> Settings:
    """Settings from `serve.args`.

    Args:
        context: the model's own, which counts where ``max-model-len`` is not set.
        gpu_bytes: memory of the smallest GPU: vLLM's defaults depend on it.

    Raises:
        UnplannedError: an argument that changes what GPUs hold in a way that is not known here, or
            a value that is no number.
    """
    given = {key.replace("_", "-"): value for key, value in arguments.items() if value is not None}
    for key in ("pipeline-parallel-size", "decode-context-parallel-size", "cpu-offload-gb"):
        if _number(given, key, 1 if key != "cpu-offload-gb" else 0) > 1:
            raise UnplannedError(f"serve.args.{key} is not planned for")
    large = gpu_bytes * known.CUDA_SHARE >= known.LARGE_GPU
    length = given.get("max-model-len")
    auto = length in {"auto", -1, "-1"}
    sequences = int(_number(given, "max-num-seqs", known.SEQUENCES[large]))
    batched = int(_number(given, "max-num-batched-tokens", known.BATCHED_TOKENS[large]))
    return Settings(
        tp=int(_number(given, "tensor-parallel-size", 1)),
        context=context if auto else int(_number(given, "max-model-len", context)),
        sequences=min(sequences, batched),
        batched_tokens=batched,
        utilization=_number(given, "gpu-memory-utilization", known.UTILIZATION),
        kv_dtype="fp8" if str(given.get("kv-cache-dtype", "auto")).startswith("fp8") else "bf16",
        kv_bytes=int(_number(given, "kv-cache-memory-bytes", 0)),
        block=int(_number(given, "block-size", known.BLOCK)),
        eager=given.get("enforce-eager") is True,
        mtp="speculative-config" in given,
        auto=auto,
    )


def _number(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UnplannedError(f"serve.args.{key} is {value!r}: a number is right")
    if isinstance(value, int | float):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value.strip())
    if match is None:
        raise UnplannedError(f"serve.args.{key} is {value!r}: a number is right")
    return float(match[1]) * _UNITS.get(match[2], 1)
