"""vLLM 0.32.0 for the CPU in this process: a model served, and all log-probabilities it gives."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

os.environ |= {
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "0", "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "",
}  # fmt: skip

from glm5_kernel.plugin import register

REGISTRATION = register()

ARGUMENTS: dict[str, Any] = {
    # bfloat16 would need AMX, and vLLM 0.32.0 crashes on some processors that have it.
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 128,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
}


@contextmanager
def serving(gguf: Path, vocabulary: int) -> Iterator[Any]:
    """vLLM's `LLM` for a GGUF file; gone afterwards, so that another can follow."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model=str(gguf), max_logprobs=vocabulary, **ARGUMENTS)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def answers(
    llm: Any,  # noqa: ANN401
    prompts: Sequence[list[int]],
    count: int,
    vocabulary: int,
) -> list[tuple[list[int], torch.Tensor]]:
    """Greedy answers to prompts that are served together.

    Returns:
        Of each: the prompt and the `count` tokens after it, but for the last; and log-probabilities
        [tokens, vocabulary] of what follows each of them.
    """
    from vllm import SamplingParams

    parameters = SamplingParams(
        temperature=0, max_tokens=count, ignore_eos=True, logprobs=vocabulary,
        prompt_logprobs=vocabulary,
    )  # fmt: skip
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    found = []
    outputs = llm.generate(requests, parameters, use_tqdm=False)
    for prompt, done in zip(prompts, outputs, strict=True):
        steps = [*done.prompt_logprobs[1:], *done.outputs[0].logprobs]
        tokens = [*prompt, *done.outputs[0].token_ids][:-1]
        found.append((tokens, torch.stack([_row(step, vocabulary) for step in steps])))
    return found


def _row(step: dict[int, Any], vocabulary: int) -> torch.Tensor:
    row = torch.full((vocabulary,), float("nan"))
    for token, each in step.items():
        row[token] = each.logprob
    return row
