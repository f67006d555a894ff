"""The one line that each worker logs: what serves attention, the cache and the indexer.

glm5-deploy's smoke test reads it from the journal: its form is a contract.
"""

from __future__ import annotations

import functools
import logging

logger = logging.getLogger("vllm.glm5_kernel")

_SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "bfloat16": "bf16", "float16": "fp16"}


def report_attention(attention: str, kv_cache_dtype: str, model_dtype: object) -> None:
    """Say once in this process which backend and which indexer run."""
    kv = str(model_dtype) if kv_cache_dtype == "auto" else kv_cache_dtype
    _report(attention, _SHORT.get(kv, kv))


@functools.cache
def _report(attention: str, kv: str) -> None:
    from glm5_kernel.indexer.choice import chosen_indexer

    logger.info("glm5_kernel: attention=%s kv=%s indexer=%s", attention, kv, chosen_indexer().name)
