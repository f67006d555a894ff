"""A tiny Llama that any machine writes in a moment, the same bytes, with nothing but Python.

Its embedding is one token, one direction, and its head sends each direction to the character that
comes next: after ``abc`` it says ``defg``. The layers between are random, so that everything runs,
and too small to turn an answer on any processor.
"""

from __future__ import annotations

import json
import random
import string
import struct
from pathlib import Path
from typing import Any

VOCABULARY = 320
HIDDEN = 320
HEAD = 64
LAYERS = 2
INTERMEDIATE = 256
CONTEXT = 1024
SEED = 5
EMBEDDED = 8.0
NOISE = 0.02

BEGIN, END, SYSTEM, USER, ASSISTANT = range(256, 261)
SPECIALS = {
    BEGIN: "<|begin|>",
    END: "<|end|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

Tensor = tuple[tuple[int, ...], bytes]
"""Shape and bfloat16 values, little-endian."""


def write_tiny_model(folder: Path) -> Path:
    """Write weights, configuration, tokenizer and chat template (2.4 MB); ``folder`` is made.

    Files that are right already are left alone, with their times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {
        "config.json": _json(_config()),
        "generation_config.json": _json({"bos_token_id": BEGIN, "eos_token_id": END}),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "model.safetensors": _safetensors(_weights()),
    }
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)
    return folder


def next_token(token: int) -> int:
    """What the model says after a token: the next letter or digit; after all else, ``a``."""
    for cycle in (string.ascii_lowercase, string.ascii_uppercase, string.digits):
        if token < 128 and chr(token) in cycle:
            return ord(cycle[(cycle.index(chr(token)) + 1) % len(cycle)])
    return ord("a")


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
    }


def _weights() -> dict[str, Tensor]:
    source = random.Random(SEED)
    key_value = HEAD
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": _sparse(
            (VOCABULARY, HIDDEN), [(token, token, EMBEDDED) for token in range(VOCABULARY)]
        ),
        "lm_head.weight": _sparse(
            (VOCABULARY, HIDDEN), [(next_token(token), token, 1.0) for token in range(VOCABULARY)]
        ),
        "model.norm.weight": _ones(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (key_value, HIDDEN),
            "self_attn.v_proj": (key_value, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = _noise(shape, source)
        tensors[f"{prefix}.input_layernorm.weight"] = _ones(HIDDEN)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = _ones(HIDDEN)
    return tensors


def _bfloat16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


def _ones(size: int) -> Tensor:
    return (size,), _bfloat16(1.0) * size


def _sparse(shape: tuple[int, int], entries: list[tuple[int, int, float]]) -> Tensor:
    data = bytearray(2 * shape[0] * shape[1])
    for row, column, value in entries:
        at = 2 * (row * shape[1] + column)
        data[at : at + 2] = _bfloat16(value)
    return shape, bytes(data)


def _noise(shape: tuple[int, int], source: random.Random) -> Tensor:
    """Uniform in ±`NOISE`, in 256 steps: each random byte is looked up as one bfloat16."""
    steps = [_bfloat16(NOISE * (2 * step / 255 - 1)) for step in range(256)]
    drawn = source.randbytes(shape[0] * shape[1])
    data = bytearray(2 * len(drawn))
    data[0::2] = drawn.translate(bytes(step[0] for step in steps))
    data[1::2] = drawn.translate(bytes(step[1] for step in steps))
    return shape, bytes(data)


def _safetensors(tensors: dict[str, Tensor]) -> bytes:
    """Length of the header as u64, the header as JSON padded to 8 bytes, then the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, (shape, data) in tensors.items():
        end = start + len(data)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values())


def _byte_characters() -> dict[int, str]:
    """Byte-level BPE writes each byte as one visible character: itself, or one from U+0100 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {
        **{byte: chr(byte) for byte in visible},
        **{byte: chr(256 + index) for index, byte in enumerate(hidden)},
    }


def _tokenizer() -> dict[str, Any]:
    """A token is a byte, and its number the byte's value; no merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, text in SPECIALS.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in sorted(_byte_characters().items())},
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BEGIN],
        "eos_token": SPECIALS[END],
        "pad_token": SPECIALS[END],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=True) + "\n").encode()
