"""Which quantisation type each tensor gets, as published files mix them."""

from __future__ import annotations

from collections.abc import Mapping

from glm5_kernel.gguf.types import BY_NAME, QuantType

PLAIN = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
)  # fmt: skip
"""One type for all matrices."""

MIXES: Mapping[str, Mapping[str, str]] = {
    # Like the dynamic quantisations of GLM-5: experts small, what every token passes large.
    "ud": {
        "": "Q6_K",
        "token_embd": "Q4_K",
        "attn_q_a": "Q5_K",
        "attn_kv_a_mqa": "Q8_0",
        "attn_k_b": "Q8_0",
        "attn_v_b": "Q8_0",
        "attn_output": "Q5_K",
        "indexer.attn_k": "Q8_0",
        "indexer.attn_q_b": "Q8_0",
        "indexer.proj": "BF16",
        "ffn_gate_exps": "IQ3_XXS",
        "ffn_up_exps": "IQ3_XXS",
        "ffn_down_exps": "Q4_K IQ4_XS",
    },
    # Everything that fused weights find hard: gate beside up of another type, floats beside both.
    "mixed": {
        "": "Q8_0",
        "token_embd": "F16",
        "output": "BF16",
        "attn_q_a": "F16",
        "attn_kv_a_mqa": "Q8_0",
        "attn_k_b": "IQ4_NL",
        "attn_v_b": "Q4_K",
        "indexer.attn_k": "F16",
        "indexer.attn_q_b": "Q4_K",
        "indexer.proj": "F32",
        "ffn_gate": "Q4_K",
        "ffn_up": "Q6_K",
        "ffn_gate_shexp": "Q8_0",
        "ffn_up_shexp": "F16",
        "ffn_gate_exps": "Q4_K Q8_0",
        "ffn_up_exps": "Q6_K Q5_K",
        "ffn_down_exps": "Q5_K",
    },
    "mxfp4": {
        "": "Q8_0", "ffn_gate_exps": "MXFP4", "ffn_up_exps": "MXFP4", "ffn_down_exps": "MXFP4",
    },
}  # fmt: skip

RECIPES = (*PLAIN, *MIXES)

ALWAYS_F32 = ("ffn_gate_inp", "exp_probs_b")

FALLBACK: Mapping[str, str] = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ1_S": "Q4_0", "IQ1_M": "Q4_0", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_S": "IQ4_NL",
    "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
}  # fmt: skip
"""For rows that do not hold whole blocks of 256, such as k_b's of 192: as llama.cpp chooses."""


def kind_for(recipe: str, name: str, ne: tuple[int, ...]) -> QuantType:
    """The type of a tensor.

    Vectors, the router and its bias are always F32. Where a mix names two types, layers alternate.

    Args:
        recipe: one of `RECIPES`.
        name: of the tensor in the file.
        ne: its ggml dimensions.
    """
    parts = name.split(".")
    block = parts[0] == "blk"
    role = ".".join(parts[2:-1] if block else parts[:-1])
    if len(ne) == 1 or role in ALWAYS_F32:
        return BY_NAME["F32"]
    mix = MIXES.get(recipe, {"": recipe.upper()})
    choices = mix.get(role, mix[""]).split()
    chosen = choices[int(parts[1]) % len(choices) if block else 0]
    while ne[0] % BY_NAME[chosen].block:
        chosen = FALLBACK.get(chosen, "F32")
    return BY_NAME[chosen]
