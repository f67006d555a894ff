"""A byte-level BPE vocabulary of a few hundred tokens, in the forms of transformers and of GGUF."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

SPECIALS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
)  # fmt: skip
"""As GLM's tokenizer names them; the vocabulary ends with them."""

MAX_MERGES = 200

_TEXT = (
    "the of and to in is that it was for on are as with his they at be this from have or by one "
    "had  not but what all were when we there can an your which their said if do will each "
    "about how up  out them then she many some so these would other into has more her two like "
    "him see time could  no make than first been its who now people my made over did down only "
    "way find use may water  long little very after words called just where most know get "
    "through back much before go good  new write our used me man too any day same right look "
    "think also around another came come work  three word must because does part even place "
    "well such here take why things help put years  different away again off went old number "
    "great tell men say small every found still between  name should home big give air line set "
    "own under read last never us left end along while might  next sound below saw something "
    "thought both few those always show large often together asked  house world going want "
    "school important until form food keep children feet land side without "
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id: 256 bytes, merges, fillers, special tokens last.

    Attributes:
        tokens: in the byte-level alphabet.
        merges: pairs with a space between, in the order of their rank.
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @property
    def special_ids(self) -> dict[str, int]:
        return {token: self.ids[token] for token in SPECIALS}

    @cached_property
    def unspoken(self) -> frozenset[int]:
        """Ids that a tiny model never answers with, so that its answers are printable text: special
        tokens, fillers, and bytes that are no printable ASCII."""
        printable = {chr(code) for code in range(33, 127)} | {_BYTES[32]}
        return frozenset(
            number
            for number, token in enumerate(self.tokens)
            if token in SPECIALS or token.startswith("<|unused") or not set(token) <= printable
        )


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where printable, else from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + index) for index, byte in enumerate(rest)
    }


_BYTES = _byte_alphabet()


def make_vocabulary(size: int) -> Vocabulary:
    """A vocabulary of `size` tokens, always the same.

    Raises:
        ValueError: too small for the bytes and the special tokens.
    """
    room = size - 256 - len(SPECIALS)
    if room < 1:
        raise ValueError(f"vocab: got {size}; allowed: {257 + len(SPECIALS)} and more")
    merges = _train(min(room, MAX_MERGES))
    fillers = [f"<|unused{n}|>" for n in range(room - len(merges))]
    letters = [_BYTES[byte] for byte in range(256)]
    merged = [left + right for left, right in merges]
    tokens = (*letters, *merged, *fillers, *SPECIALS)
    return Vocabulary(tokens, tuple(f"{left} {right}" for left, right in merges))


def _train(count: int) -> list[tuple[str, str]]:
    """The most frequent pairs of the words, each with the space before it, one after the other."""
    words = [[_BYTES[32], *word] for word in WORDS] + [list(word) for word in WORDS]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [_merged(word, best) for word in words]
    return merges


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for letter in word:
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return out


CHAT_TEMPLATE = (
    "[gMASK]<sop>{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """tokenizer.json, which transformers' fast tokenizer loads."""
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number, "content": token, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for token, number in vocabulary.special_ids.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **byte_level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {
                token: number
                for number, token in enumerate(vocabulary.tokens)
                # Fillers stay plain: 150,000 added tokens would slow every encoding.
                if token not in SPECIALS
            },
            "merges": [merge.split(" ") for merge in vocabulary.merges],
        },
    }  # fmt: skip


def tokenizer_config(context: int) -> dict[str, Any]:
    """tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": context,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }


def gguf_metadata(vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokenizer as GGUF metadata; llama.cpp wants merges in it."""
    ids = vocabulary.special_ids
    # 1 normal, 3 control, 5 unused (ggml's token types).
    kinds = [
        3 if token in ids else 5 if token.startswith("<|unused") else 1
        for token in vocabulary.tokens
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(vocabulary.tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(vocabulary.merges),
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eot_token_id": ids["<|user|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
