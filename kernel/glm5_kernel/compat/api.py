"""vLLM's names that our attention backend and indexer are built on (read in 0.26.0).

Importing this takes as long as vLLM's own sparse attention does: only processes that serve such a
model get here.
"""

from vllm import _custom_ops as custom_ops
from vllm import envs
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.config import get_current_vllm_config, get_current_vllm_config_or_none
from vllm.forward_context import get_forward_context
from vllm.utils.torch_utils import (
    LayerNameType,
    _encode_layer_name,
    _resolve_layer_name,
    direct_register_custom_op,
)
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
)
from vllm.v1.worker.workspace import current_workspace_manager

from glm5_kernel.compat.versions import shares_sparse_mla

if shares_sparse_mla():
    from vllm.model_executor.layers.attention.sparse_mla_attention import (
        SparseMLACommonImpl,
        SparseMLACommonMetadataBuilder,
    )
else:
    from glm5_kernel.compat.before_026 import (
        SparseMLACommonImpl,
        SparseMLACommonMetadataBuilder,
    )

__all__ = [
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionMetadata",
    "LayerNameType",
    "SparseMLACommonImpl",
    "SparseMLACommonMetadataBuilder",
    "_encode_layer_name",
    "_resolve_layer_name",
    "current_workspace_manager",
    "custom_ops",
    "direct_register_custom_op",
    "eager_break_during_capture",
    "envs",
    "get_current_vllm_config",
    "get_current_vllm_config_or_none",
    "get_forward_context",
]
