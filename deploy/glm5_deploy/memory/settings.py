"""What a profile's serve arguments say about memory, with vLLM's defaults for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glm5_deploy.config.numbers import UTILIZATION, fraction, is_automatic, whole
from glm5_deploy.memory import constants as known

KvDtype = Literal["bf16", "fp8"]

_ONE = (
    "pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size",
    "prefill-context-parallel-size",
)  # fmt: skip
"""What spreads a model in other ways than tensor parallelism."""
_INVARIANT = "VLLM_BATCH_INVARIANT"
_STRETCHING = {"hf-overrides", "rope-scaling", "rope-parameters"}


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
        stretched: a longer context than the model was made for is allowed.
        invariant: results must not depend on the batch.
    """

    tp: int
    context: int
    sequences: int
    batched_tokens: int
    utilization: float = UTILIZATION
    kv_dtype: KvDtype = "bf16"
    kv_bytes: int = 0
    block: int = known.BLOCK
    eager: bool = False
    mtp: bool = False
    auto: bool = False
    stretched: bool = False
    invariant: bool = False


class UnplannedError(ValueError):
    """The arguments say something that this plan does not know."""


def read_settings(
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    context: int,
    gpu_bytes: int,
) -> Settings:
    """Settings from `serve.args` and the service's variables.

    Args:
        given: the arguments by vLLM's names (`Serve.options`).
        environment: variables of the server; vLLM reads its own so (vllm/envs.py).
        context: the model's own, which counts where ``max-model-len`` is not set.
        gpu_bytes: memory of the smallest GPU: vLLM's defaults depend on it.

    Raises:
        UnplannedError: an argument that changes what GPUs hold in a way that is not known here, or
            a value that is no number.
    """
    for key in _ONE:
        if _whole(given, key, 1) > 1:
            raise UnplannedError(f"serve.args.{key} is not planned for")
    if fraction(given.get("cpu-offload-gb", 0)) != 0:
        raise UnplannedError("serve.args.cpu-offload-gb is not planned for")
    large = gpu_bytes * known.CUDA_SHARE >= known.LARGE_GPU
    auto = is_automatic(given.get("max-model-len"))
    sequences = _whole(given, "max-num-seqs", known.SEQUENCES[large])
    batched = _whole(given, "max-num-batched-tokens", known.BATCHED_TOKENS[large])
    return Settings(
        tp=_whole(given, "tensor-parallel-size", 1),
        context=context if auto else _whole(given, "max-model-len", context),
        sequences=min(sequences, batched),
        batched_tokens=batched,
        utilization=_share(given, "gpu-memory-utilization", UTILIZATION),
        kv_dtype="fp8" if str(given.get("kv-cache-dtype", "auto")).startswith("fp8") else "bf16",
        kv_bytes=_whole(given, "kv-cache-memory-bytes", 0),
        block=_whole(given, "block-size", known.BLOCK),
        eager=given.get("enforce-eager") is True,
        mtp=_uses_mtp(given.get("speculative-config")),
        auto=auto,
        stretched=_is_stretched(given, environment),
        invariant=bool(whole(_INVARIANT, environment.get(_INVARIANT, "0"))),
    )


def _is_stretched(given: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    longer = environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")
    return longer or bool(_STRETCHING & given.keys())


def _uses_mtp(config: object) -> bool:
    """Whether speculation runs a block of the model itself.

    Raises:
        UnplannedError: a draft model of its own, or a text that is no JSON.
    """
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise UnplannedError("serve.args.speculative-config is no JSON") from error
    method = str(config.get("method", "")) if isinstance(config, Mapping) else ""
    if config is None or method in {"ngram", "ngram_gpu", "suffix"}:
        return False
    if not method.endswith("mtp"):
        named = f"method {method!r}" if method else "a method that it does not name"
        raise UnplannedError(f"serve.args.speculative-config with {named} is not planned for")
    return True


def _whole(given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    number = whole(key, value)
    if number is None or (key in given and number <= 0):
        raise UnplannedError(f"serve.args.{key} is {value!r}: a whole number above 0 is right")
    return number


def _share(given: Mapping[str, Any], key: str, default: float) -> float:
    value = given.get(key, default)
    number = fraction(value)
    if number is None or not 0 < number <= 1:
        raise UnplannedError(f"serve.args.{key} is {value!r}: more than 0 and at most 1 is right")
    return number
