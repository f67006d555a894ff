"""The files of a tiny model: GGUF in one file or a split, config and tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glm5_kernel.gguf.tiny.codec import encode, package
from glm5_kernel.gguf.tiny.recipes import kind_for
from glm5_kernel.gguf.tiny.spec import TinySpec, check_split, config, metadata, tensor_dims
from glm5_kernel.gguf.tiny.vocabulary import (
    CHAT_TEMPLATE,
    Vocabulary,
    gguf_metadata,
    make_vocabulary,
    tokenizer_config,
    tokenizer_json,
)
from glm5_kernel.gguf.tiny.weights import make_tensor
from glm5_kernel.gguf.types import row_bytes

Say = Callable[[str], None]
Dims = tuple[int, ...]


def write_gguf(folder: Path, spec: TinySpec, split: int = 1, say: Say = print) -> list[Path]:
    """The model's GGUF; the first file of a split holds metadata alone.

    Tensors are made, written and forgotten one by one.

    Args:
        folder: where; it must be there.
        spec: the model.
        split: files.
        say: told of every file.

    Returns:
        The files, first to last.

    Raises:
        MissingPackageError: gguf or libgguf is not installed.
        ValueError: fewer tensors than there would be files.
    """
    gguf = package("gguf", "making a GGUF file")
    check_split(spec, split)
    dims = tensor_dims(spec)
    path = folder / f"{spec.name}.gguf"
    vocabulary = make_vocabulary(spec.hp.vocab)
    writer = gguf.GGUFWriter(path, spec.hp.architecture, small_first_shard=split > 1)
    _add_metadata(gguf, writer, spec, vocabulary)
    _add_tensors(gguf, writer, spec, dims, split)
    paths = [Path(each) for each in writer.format_shard_names(path)]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, ne in dims.items():
        writer.write_tensor_data(_encoded(spec, name, ne, vocabulary))
    writer.close()
    for each in paths:
        say(f"wrote {each} ({each.stat().st_size / 1e6:,.1f} MB)")
    return paths


def _add_tensors(
    gguf: ModuleType,
    writer: Any,  # noqa: ANN401
    spec: TinySpec,
    dims: Mapping[str, Dims],
    split: int,
) -> None:
    """All entries, with as many to each file as to every other, or one more."""
    least, more = divmod(len(dims), max(1, split - 1))
    for name, ne in dims.items():
        kind = kind_for(spec.quant, name, ne)
        size = row_bytes(kind, ne[0]) * math.prod(ne[1:])
        number = gguf.GGMLQuantizationType(kind.number)
        if split > 1:
            # A file is full after so many; the writer then begins the next.
            shard = len(writer.tensors) - 2
            writer.split_max_tensors = least + (shard < more)
        writer.add_tensor_info(name, ne[::-1], np.dtype(np.float32), size, raw_dtype=number)


def _add_metadata(
    gguf: ModuleType,
    writer: Any,  # noqa: ANN401
    spec: TinySpec,
    vocabulary: Vocabulary,
) -> None:
    writer.add_name(spec.name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in (metadata(spec) | gguf_metadata(vocabulary)).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def _encoded(spec: TinySpec, name: str, ne: Dims, vocabulary: Vocabulary) -> NDArray[Any]:
    data = encode(make_tensor(spec, name, vocabulary), kind_for(spec.quant, name, ne))
    if len(ne) == 3 and data.shape[0] != ne[2]:
        data = np.repeat(data, ne[2], axis=0)
    return data


def write_companions(folder: Path, spec: TinySpec, *, bare: bool = False) -> list[Path]:
    """config.json, generation_config.json, the tokenizer and its chat template.

    Args:
        folder: where; it must be there.
        spec: the model.
        bare: leave out of config.json what can be known from the GGUF file alone.
    """
    vocabulary = make_vocabulary(spec.hp.vocab)
    ids = vocabulary.special_ids
    end = [ids["<|endoftext|>"], ids["<|user|>"], ids["<|observation|>"]]
    tokens = {"eos_token_id": end, "pad_token_id": end[0]}
    documents: dict[str, Any] = {
        "config.json": config(spec, bare=bare) | tokens,
        "generation_config.json": tokens | {"do_sample": False},
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config(spec.hp.context),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return [folder / name for name in (*documents, "chat_template.jinja")]
