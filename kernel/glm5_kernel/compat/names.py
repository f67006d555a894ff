"""What we use of vLLM that it does not promise, and whether this vLLM has it.

Read in vLLM 0.26.0. A name that is gone or takes other arguments is reported by name, so that a
patched or newer vLLM is refused with a reason instead of failing in the middle of a forward pass.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass

from glm5_kernel.compat.versions import shares_sparse_mla


@dataclass(frozen=True)
class Need:
    """One name.

    Args:
        name: attribute path within the module; empty for the module itself.
        parameters: arguments that it must take, by these names.
    """

    module: str
    name: str = ""
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


_MLA_ARGUMENTS = (
    "num_heads", "head_size", "scale", "num_kv_heads", "alibi_slopes", "sliding_window",
    "kv_cache_dtype", "logits_soft_cap", "attn_type", "kv_sharing_target_layer_name",
    "indexer", "topk_indices_buffer",
)  # fmt: skip
_SPARSE = "vllm.model_executor.layers.attention.sparse_mla_attention"
_BACKEND = "vllm.v1.attention.backend"
_INDEXER = "vllm.model_executor.layers.sparse_attn_indexer"
_METADATA = "vllm.v1.attention.backends.mla.indexer"

REGISTRY = (
    Need("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CUSTOM"),
    Need("vllm.v1.attention.backends.registry", "register_backend", ("backend", "class_path")),
)
REFUSAL = (Need("vllm.platforms.interface", "Platform.check_and_update_config", ("vllm_config",)),)
SELECTION = (
    Need("vllm.v1.attention.selector", "AttentionSelectorConfig"),
    Need(
        "vllm.platforms.interface", "Platform.get_attn_backend_cls",
        ("selected_backend", "attn_selector_config", "num_heads"),
    ),
)  # fmt: skip
_BATCH = ("common_prefix_len", "common_attn_metadata", "fast_build")
SPARSE_MLA = (
    Need(_SPARSE, "SparseMLACommonImpl.__init__", _MLA_ARGUMENTS),
    Need(_SPARSE, "SparseMLACommonMetadataBuilder.build", _BATCH),
)
SPARSE_MLA_BEFORE_026 = (
    Need(_BACKEND, "SparseMLAAttentionImpl"),
    Need(_BACKEND, "AttentionMetadataBuilder.__init__",
         ("kv_cache_spec", "layer_names", "vllm_config", "device")),
    Need(_BACKEND, "AttentionMetadataBuilder.build", _BATCH),
)  # fmt: skip
ATTENTION = (
    *REGISTRY,
    *SELECTION,
    *(SPARSE_MLA if shares_sparse_mla() else SPARSE_MLA_BEFORE_026),
    Need(_BACKEND, "AttentionBackend.validate_configuration", ("device_capability",)),
    Need(_BACKEND, "AttentionBackend.get_kv_cache_shape", ("num_blocks", "block_size")),
    Need(_BACKEND, "AttentionCGSupport.UNIFORM_BATCH"),
    Need(_BACKEND, "AttentionMetadata"),
    Need(
        _BACKEND, "AttentionMetadataBuilder._init_reorder_batch_threshold",
        ("reorder_batch_threshold", "supports_spec_as_decode"),
    ),
    Need(_BACKEND, "MLAAttentionImpl.forward_mqa",
         ("q", "kv_c_and_k_pe_cache", "attn_metadata", "layer")),
    Need("vllm.v1.worker.workspace", "current_workspace_manager"),
    Need("vllm.v1.worker.workspace", "WorkspaceManager.get_simultaneous", ("shapes_and_dtypes",)),
    Need("vllm.config", "get_current_vllm_config"),
    Need("vllm.config", "get_current_vllm_config_or_none"),
)  # fmt: skip
INDEXER = (
    Need(
        _INDEXER, "SparseAttnIndexer.__init__",
        ("k_cache", "quant_block_size", "scale_fmt", "topk_tokens", "head_dim", "max_model_len",
         "max_total_seq_len", "topk_indices_buffer", "skip_k_cache_insert", "use_fp4_cache"),
    ),
    Need(
        _INDEXER, "SparseAttnIndexer.forward_cuda", ("hidden_states", "q_quant", "k", "weights"),
    ),
    Need("vllm.config", "VllmConfig.num_speculative_tokens"),
    Need("vllm.model_executor.custom_op", "CustomOp.register_oot", ("name",)),
    Need("vllm.model_executor.custom_op", "op_registry_oot"),
    Need("vllm.config.compilation", "CompilationConfig._attention_ops"),
    Need(_METADATA, "DeepseekV32IndexerMetadata",
         ("num_decodes", "num_decode_tokens", "num_prefills", "num_prefill_tokens", "decode",
          "prefill", "max_seq_len", "slot_mapping")),
    Need(_METADATA, "DeepSeekV32IndexerDecodeMetadata",
         ("block_table", "seq_lens", "decode_lens", "requires_padding")),
    Need(_METADATA, "DeepseekV32IndexerPrefillMetadata", ("chunks",)),
    Need(_METADATA, "DeepseekV32IndexerPrefillChunkMetadata",
         ("block_table", "cu_seqlen_ks", "cu_seqlen_ke", "cu_seq_lens", "total_seq_lens",
          "token_start", "token_end", "skip_kv_gather")),
    Need(_METADATA, "has_deep_gemm"),
    Need("vllm._custom_ops", "indexer_k_quant_and_cache",
         ("k", "kv_cache", "slot_mapping", "quant_block_size", "kv_cache_dtype")),
    Need("vllm._custom_ops", "cp_gather_indexer_k_quant_cache",
         ("kv_cache", "dst_k", "dst_scale", "block_table", "cu_seq_lens")),
    Need("vllm.forward_context", "get_forward_context"),
    Need("vllm.v1.worker.workspace", "current_workspace_manager"),
    Need("vllm.utils.torch_utils", "direct_register_custom_op",
         ("op_name", "op_func", "mutates_args", "fake_impl", "target_lib")),
    Need("vllm.utils.torch_utils", "_encode_layer_name", ("layer_name",)),
    Need("vllm.utils.torch_utils", "_resolve_layer_name", ("layer_name",)),
    Need("vllm.utils.torch_utils", "LayerNameType"),
    Need("vllm.compilation.breakable_cudagraph", "eager_break_during_capture", ("fn",)),
)  # fmt: skip
_LINEAR = "vllm.model_executor.layers.linear"
_MOE = "vllm.model_executor.layers.fused_moe"
_GGUF_OPS = "vllm_gguf_plugin.ops"
GGUF = (
    Need("vllm_gguf_plugin.loader", "GGUFModelLoader._prepare_weights", ("model_config",)),
    Need("vllm_gguf_plugin.loader", "GGUFModelLoader.load_model", ("vllm_config", "model_config")),
    Need("vllm_gguf_plugin.config_parser", "GGUFConfigParser.parse",
         ("model", "trust_remote_code", "revision", "code_revision")),
    Need("vllm_gguf_plugin.quantization", "GGUFConfig.get_quant_method", ("layer", "prefix")),
    Need("vllm_gguf_plugin.quantization.linear", "_fused_mul_mat_gguf",
         ("x", "qweight", "qweight_type")),
    Need(_GGUF_OPS, "ggml_dequantize", ("W", "quant_type", "m", "n", "dtype")),
    Need(_GGUF_OPS, "ggml_moe_get_block_size", ("quant_type",)),
    Need(_GGUF_OPS, "ggml_moe_a8_vec",
         ("X", "W", "topk_ids", "top_k", "quant_type", "row", "tokens")),
    Need(_GGUF_OPS, "ggml_moe_a8",
         ("X", "W", "sorted_token_ids", "expert_ids", "num_tokens_post_padded", "quant_type",
          "row", "top_k", "tokens")),
    Need("vllm.transformers_utils.config", "register_config_parser", ("config_format",)),
    Need("vllm.model_executor.model_loader", "register_model_loader", ("load_format",)),
    Need("vllm.model_executor.model_loader.utils", "initialize_model",
         ("vllm_config", "prefix", "model_config")),
    Need("vllm.model_executor.model_loader.utils", "process_weights_after_loading",
         ("model", "model_config", "target_device")),
    Need(_LINEAR, "LinearMethodBase.create_weights",
         ("layer", "input_size_per_partition", "output_partition_sizes", "params_dtype")),
    Need(_LINEAR, "RowParallelLinear"),
    Need(_LINEAR, "ColumnParallelLinear"),
    Need(_LINEAR, "UnquantizedLinearMethod"),
    Need(_MOE, "RoutedExperts"),
    Need(f"{_MOE}.activation", "apply_moe_activation"),
    Need(f"{_MOE}.moe_align_block_size", "moe_align_block_size",
         ("topk_ids", "block_size", "num_experts")),
    Need(f"{_MOE}.fused_moe_method_base", "FusedMoEMethodBase.create_weights",
         ("layer", "num_experts", "hidden_size", "intermediate_size_per_partition")),
    Need(f"{_MOE}.unquantized_fused_moe_method", "UnquantizedFusedMoEMethod"),
    Need("vllm.model_executor.layers.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"),
    Need("vllm.utils.torch_utils", "direct_register_custom_op",
         ("op_name", "op_func", "fake_impl")),
)  # fmt: skip
CPU = (
    Need("vllm.platforms.cpu", "CpuPlatform.check_and_update_config", ("vllm_config",)),
    Need("vllm.v1.attention.backends.registry", "AttentionBackendEnum.CPU_MLA"),
)


def missing(needs: Iterable[Need]) -> list[str]:
    """What this vLLM lacks, one sentence each; empty where all is as known. Imports the modules."""
    return [problem for need in needs if (problem := _problem(need))]


def _problem(need: Need) -> str | None:
    try:
        found: object = importlib.import_module(need.module)
    except ImportError as error:
        return f"{need.module} does not import ({error})"
    for part in filter(None, need.name.split(".")):
        if not hasattr(found, part):
            return f"{need} is gone"
        found = getattr(found, part)
    lacking = set(need.parameters) - _parameters(found) if need.parameters else set()
    return f"{need} takes no {', '.join(sorted(lacking))}" if lacking else None


def _parameters(function: object) -> set[str]:
    if not callable(function):
        return set()
    return set(inspect.signature(function).parameters)
