"""Puts our indexer layer in the place of vLLM's."""

from __future__ import annotations

import logging
from types import ModuleType

from glm5_kernel.compat import names
from glm5_kernel.indexer import OP

logger = logging.getLogger("vllm.glm5_kernel")


def replace_layer(stock: ModuleType) -> None:
    """Register our class once vLLM's module (`sparse_attn_indexer`) has been imported."""
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot

    if "SparseAttnIndexer" in op_registry_oot:
        return
    problems = names.missing(names.INDEXER)
    if problems:
        logger.error("glm5_kernel: the indexer is left to stock vLLM: %s", "; ".join(problems))
        return
    from glm5_kernel.indexer.layer import TritonSparseAttnIndexer

    CustomOp.register_oot(name="SparseAttnIndexer")(TritonSparseAttnIndexer)


def split_graphs(compilation: ModuleType) -> None:
    """Our op reads the batch's metadata, so piecewise CUDA graphs must break at it."""
    operations = compilation.CompilationConfig._attention_ops
    if OP not in operations:
        operations.append(OP)
