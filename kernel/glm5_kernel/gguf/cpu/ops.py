"""What vllm-gguf-plugin calls its kernels for, computed on the CPU by gguf's numpy code.

The functions of `vllm_gguf_plugin.ops` (0.0.5), by the same names and arguments. Weights are
decoded whenever they are used, so that a model takes no more memory than its file; activations are
never quantised, unlike in the plugin's GPU kernels.
"""

from __future__ import annotations

import torch

from glm5_kernel.gguf.compute import dequantise

MOE_BLOCK = 16
"""Tokens of one expert that vLLM groups; any number is right here."""


def ggml_dequantize(
    W: torch.Tensor,  # noqa: N803
    quant_type: int,
    m: int,
    n: int,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Values [m, n] of uint8 rows, float16 where no dtype is asked for."""
    return dequantise(W, quant_type, dtype or torch.float16).view(m, n)


def ggml_mul_mat_vec_a8(
    W: torch.Tensor,  # noqa: N803
    X: torch.Tensor,  # noqa: N803
    quant_type: int,
    row: int,
) -> torch.Tensor:
    """X [tokens, in] times W (uint8 [row, bytes]): [tokens, row]."""
    return (X @ dequantise(W, quant_type, X.dtype).T).view(-1, row)


ggml_mul_mat_a8 = ggml_mul_mat_vec_a8


def ggml_moe_a8_vec(
    X: torch.Tensor,  # noqa: N803
    W: torch.Tensor,  # noqa: N803
    topk_ids: torch.Tensor,
    top_k: int,
    quant_type: int,
    row: int,
    tokens: int,
) -> torch.Tensor:
    """Each row of X through each of its chosen experts.

    Args:
        X: [tokens, in].
        W: uint8 [experts, row, bytes].
        topk_ids: [tokens * top_k] in any shape, the experts of each token one after the other.
        top_k: experts of a token.
        quant_type: ggml's number.
        row: rows of an expert.
        tokens: rows of X.

    Returns:
        [tokens * top_k, row].
    """
    ids = topk_ids.reshape(tokens, top_k)
    return through_experts(X, W, ids, quant_type).view(-1, row)


def through_experts(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, kind: int
) -> torch.Tensor:
    """[tokens * chosen, rows]: row t * chosen + c is token t through its c-th expert.

    Args:
        x: [tokens, in].
        weight: uint8 [experts, rows, bytes].
        ids: [tokens, chosen]; a number that no expert has leaves zeros.
        kind: ggml's number of the type.
    """
    flat = ids.reshape(-1)
    out = x.new_zeros(flat.shape[0], weight.shape[1])
    for expert in sorted(set(flat.tolist())):
        if 0 <= expert < weight.shape[0]:
            mine = (flat == expert).nonzero().squeeze(1)
            rows = x[mine // ids.shape[1]]
            out[mine] = rows @ dequantise(weight[expert], kind, x.dtype).T
    return out


def ggml_moe_a8(
    X: torch.Tensor,  # noqa: N803
    W: torch.Tensor,  # noqa: N803
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    quant_type: int,
    row: int,
    top_k: int,
    tokens: int,
) -> torch.Tensor:
    """The same from tokens that are sorted by expert and padded to blocks of `MOE_BLOCK`."""
    slots = sorted_token_ids[: int(num_tokens_post_padded.item())].long()
    experts = expert_ids.repeat_interleave(MOE_BLOCK)[: slots.numel()]
    real = (slots >= 0) & (slots < tokens * top_k)
    ids = torch.full((tokens * top_k,), -1, dtype=torch.long)
    ids[slots[real]] = experts[real].long()
    return ggml_moe_a8_vec(X, W, ids, top_k, quant_type, row, tokens)


def ggml_moe_get_block_size(quant_type: int) -> int:
    """See `MOE_BLOCK`."""
    del quant_type
    return MOE_BLOCK


def moe_sum(input: torch.Tensor, output: torch.Tensor) -> None:
    """[tokens, chosen, hidden] summed over the chosen experts."""
    torch.sum(input, dim=1, out=output)
