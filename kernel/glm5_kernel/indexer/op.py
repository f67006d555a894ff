"""The custom op: insert k into the cache, score, choose; a prefill part and a decode part.

The batch comes from vLLM's indexer metadata (`v1/attention/backends/mla/indexer.py`, 0.26.0), which
already cuts prefills so that their logits stay below VLLM_SPARSE_INDEXER_MAX_LOGITS_MB.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from glm5_kernel.compat import api
from glm5_kernel.indexer.whole import WholePasts
from glm5_kernel.ops.indexer import decode_topk, prefill_topk
from glm5_kernel.ops.topk import topk_indices, unscored, workspace_bytes
from glm5_kernel.ops.warmup import warm_indexer
from glm5_kernel.warming import warm_once

_library = Library("glm5_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
_COLUMNS = 256
"""Widths are rounded up to this: fewer forms of the kernels."""


_workspaces: dict[torch.device, Tensor] = {}
_whole_pasts = WholePasts()
_decoded: dict[torch.device, int] = {}
"""Tokens that a request decodes at a time."""


def prepare(device: torch.device, max_rows: int, next_n: int) -> None:
    """Make the top-k's workspace, before any CUDA graph is captured; one serves all layers.

    It starts as zeros and keeps its state between calls, so it cannot come from the shared pool.
    """
    _decoded[device] = max(next_n, _decoded.get(device, 1))
    needed = workspace_bytes(max_rows, device=device)
    found = _workspaces.get(device)
    if found is None or found.numel() < needed:
        _workspaces[device] = torch.zeros(needed, dtype=torch.uint8, device=device)


def define() -> None:
    """Register the op with torch, once in a process."""
    if not hasattr(torch.ops.glm5_kernel, "sparse_attn_indexer"):
        api.direct_register_custom_op(
            op_name="sparse_attn_indexer",
            op_func=sparse_attn_indexer,
            mutates_args=["topk_indices_buffer"],
            fake_impl=_fake,
            target_lib=_library,
        )


@api.eager_break_during_capture  # type: ignore[untyped-decorator]
def sparse_attn_indexer(
    hidden_states: Tensor,
    k_cache_prefix: api.LayerNameType,
    kv_cache: Tensor,
    q_quant: Tensor,
    k: Tensor,
    weights: Tensor,
    quant_block_size: int,
    scale_fmt: str,
    topk_tokens: int,
    head_dim: int,
    max_model_len: int,
    max_total_seq_len: int,
    topk_indices_buffer: Tensor,
    skip_k_cache_insert: bool,
) -> Tensor:
    """Positions of the best tokens for each token of the batch.

    Args:
        hidden_states: [tokens, hidden]; only its length counts.
        kv_cache: [blocks, 64, 132] uint8: a block's e4m3 values, then its float32 scales.
        q_quant: [tokens, H, D] e4m3, its scale folded into `weights` [tokens, H] float32.
        k: [tokens, D] in the model's dtype.
        max_total_seq_len: rows of the buffer that gathers the k of prefills.
        topk_indices_buffer: [≥ tokens, ≥ topk_tokens] int32, written: request-local, −1 padded.
    """
    context = api.get_forward_context()
    attn_metadata = context.attn_metadata
    if not isinstance(attn_metadata, dict):
        _reserve(max_total_seq_len, head_dim, hidden_states)
        longest = (max_model_len, max_total_seq_len)
        _warm_up(q_quant.shape[1], topk_tokens, longest, topk_indices_buffer)
        return topk_indices_buffer
    metadata = attn_metadata[api._resolve_layer_name(k_cache_prefix)]
    if not skip_k_cache_insert:
        # k may be padded to the size of a CUDA graph; the slots cover the tokens alone.
        slots = metadata.slot_mapping
        api.custom_ops.indexer_k_quant_and_cache(
            k[: slots.shape[0]], kv_cache, slots, quant_block_size, scale_fmt
        )
    all_fit = _all_fit(metadata.max_seq_len, topk_tokens)
    if all_fit and _whole_pasts.hold(topk_indices_buffer, (context, metadata)):
        return topk_indices_buffer
    # Rows of the batch's tokens are −1 padded when they are chosen; a graph's padding has none.
    tokens = metadata.num_decode_tokens + metadata.num_prefill_tokens
    if tokens < hidden_states.shape[0]:
        topk_indices_buffer[tokens : hidden_states.shape[0]] = -1
    if all_fit:
        _choose_all(metadata, topk_indices_buffer, topk_tokens)
        return topk_indices_buffer
    _whole_pasts.forget(topk_indices_buffer)
    if metadata.num_prefills > 0:
        gathered = _gather_buffers(max_total_seq_len, head_dim)
        for chunk in metadata.prefill.chunks:
            rows = slice(chunk.token_start, chunk.token_end)
            chosen = topk_indices_buffer[rows, :topk_tokens]
            _prefill(chunk, kv_cache, q_quant[rows], weights[rows], gathered, chosen)
    if metadata.num_decodes > 0:
        width = _width(metadata.max_seq_len, max_model_len)
        _decode(metadata, kv_cache, q_quant, weights, width, topk_indices_buffer, topk_tokens)
    return topk_indices_buffer


def _fake(
    hidden_states: Tensor,
    k_cache_prefix: api.LayerNameType,
    kv_cache: Tensor,
    q_quant: Tensor,
    k: Tensor,
    weights: Tensor,
    quant_block_size: int,
    scale_fmt: str,
    topk_tokens: int,
    head_dim: int,
    max_model_len: int,
    max_total_seq_len: int,
    topk_indices_buffer: Tensor,
    skip_k_cache_insert: bool,
) -> Tensor:
    return topk_indices_buffer


def _gather_buffers(rows: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Values [rows, head_dim] e4m3 and scales [rows, 4] uint8 from the pool of all layers."""
    values, scales = api.current_workspace_manager().get_simultaneous(
        ((rows, head_dim), torch.float8_e4m3fn), ((rows, 4), torch.uint8)
    )
    return values, scales


def _reserve(rows: int, head_dim: int, hidden_states: Tensor) -> None:
    """Take in vLLM's profiling run what a real batch may need, so that it is counted."""
    _gather_buffers(rows, head_dim)
    limit = int(api.envs.VLLM_SPARSE_INDEXER_MAX_LOGITS_MB) * 2**20
    torch.empty(limit, dtype=torch.uint8, device=hidden_states.device)


def _warm_up(heads: int, topk: int, longest: tuple[int, int], buffer: Tensor) -> None:
    """Compile what a batch may need: contexts that are decoded, and keys of a prefill, so long."""
    rows, device = buffer.shape[0], buffer.device
    context, next_n = -(-longest[0] // _COLUMNS) * _COLUMNS, _decoded.get(device, 1)
    given = (rows, context, longest[1], heads, topk, next_n, device)
    workspace = _workspaces.get(device)
    warm_once("indexer", given, lambda: warm_indexer(*given, workspace=workspace))


def _all_fit(max_seq_len: int, topk_tokens: int) -> bool:
    """Whether every token's whole past is chosen, so that nothing is to be scored.

    Not while a CUDA graph is captured: it is replayed for longer requests.
    """
    return max_seq_len <= topk_tokens and not torch.cuda.is_current_stream_capturing()


def _choose_all(metadata: Any, buffer: Tensor, topk_tokens: int) -> None:  # noqa: ANN401
    """Each token's past in order, −1 behind it."""
    for chunk in metadata.prefill.chunks if metadata.num_prefills > 0 else ():
        chosen = buffer[chunk.token_start : chunk.token_end, :topk_tokens]
        nothing = unscored(chosen.shape[0], chunk.total_seq_lens, buffer.device)
        topk_indices(
            nothing, topk_tokens, starts=chunk.cu_seqlen_ks, ends=chunk.cu_seqlen_ke, out=chosen,
            workspace=_workspaces[buffer.device],
        )  # fmt: skip
    if metadata.num_decodes > 0:
        context, _ = _decoded_tokens(metadata)
        tokens = metadata.num_decode_tokens
        topk_indices(
            unscored(tokens, topk_tokens, buffer.device), topk_tokens, ends=context,
            out=buffer[:tokens, :topk_tokens], workspace=_workspaces[buffer.device],
        )  # fmt: skip


def _width(max_seq_len: int, max_model_len: int) -> int:
    """Columns of the decode logits: the batch's longest request, or any in a CUDA graph."""
    longest = max_model_len
    if not torch.cuda.is_current_stream_capturing():
        longest = min(max_seq_len, max_model_len)
    return -(-longest // _COLUMNS) * _COLUMNS


def _prefill(
    chunk: Any,  # noqa: ANN401
    kv_cache: Tensor,
    q: Tensor,
    weights: Tensor,
    gathered: tuple[Tensor, Tensor],
    chosen: Tensor,
) -> None:
    """Rows of one chunk: gather its requests' k once, then score and choose."""
    keys = chunk.total_seq_lens
    values, scales = gathered[0][:keys], gathered[1][:keys]
    if not chunk.skip_kv_gather:
        api.custom_ops.cp_gather_indexer_k_quant_cache(
            kv_cache, values, scales, chunk.block_table, chunk.cu_seq_lens
        )
    prefill_topk(
        q,
        values,
        scales.view(torch.float32).squeeze(-1),
        weights,
        chunk.cu_seqlen_ks,
        chunk.cu_seqlen_ke,
        chosen.shape[1],
        out=chosen,
        workspace=_workspaces[q.device],
    )


def _decode(
    metadata: Any,  # noqa: ANN401
    kv_cache: Tensor,
    q_quant: Tensor,
    weights: Tensor,
    width: int,
    buffer: Tensor,
    topk_tokens: int,
) -> None:
    """The decode tokens: `next_n` of each request, or each on its own where requests differ."""
    tokens = metadata.num_decode_tokens
    context, table = _decoded_tokens(metadata)
    decode_topk(
        q_quant[:tokens].view(context.shape[0], -1, *q_quant.shape[1:]),
        kv_cache,
        weights[:tokens],
        context,
        table,
        topk_tokens,
        max_context=width,
        out=buffer[:tokens, :topk_tokens],
        workspace=_workspaces[q_quant.device],
    )


def _decoded_tokens(metadata: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """Contexts and block tables, of each request or of each token."""
    decode = metadata.decode
    requests = decode.decode_lens.shape[0]
    if decode.requires_padding:
        return one_by_one(
            decode.decode_lens,
            decode.seq_lens[:requests, -1],
            decode.block_table,
            metadata.num_decode_tokens,
        )
    return decode.seq_lens[:requests], decode.block_table


def one_by_one(
    decode_lens: Tensor, seq_lens: Tensor, block_table: Tensor, tokens: int
) -> tuple[Tensor, Tensor]:
    """Contexts [tokens, 1] and block tables [tokens, pages] of tokens that are asked on their own.

    vLLM pads such requests to the longest, which needs its length on the host; this needs nothing
    from the GPU. Padding tokens, behind the last request, have a context of 0.

    Args:
        decode_lens: [B] int32: the tokens of each request, in order.
        seq_lens: [B] int32: the context of each request's last token, itself included.
        block_table: [B, pages] int32.
    """
    ends = decode_lens.cumsum(0)
    token = torch.arange(tokens, device=decode_lens.device)
    request = torch.searchsorted(ends, token, right=True).clamp_(max=decode_lens.shape[0] - 1)
    context = seq_lens[request] - (ends[request] - token) + 1
    context = torch.where(token < ends[-1], context, 0).to(torch.int32)
    return context.unsqueeze(1), block_table[request]
