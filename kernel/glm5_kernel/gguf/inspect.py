"""`python -m glm5_kernel inspect FILE…`: what a file holds and what serving it takes.

Reads headers alone, so it answers at once for files of hundreds of gigabytes, and needs neither
torch nor vLLM. glm5-deploy calls `inspect_model` with headers read over SFTP.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from glm5_kernel.gguf.errors import GgufError, printable
from glm5_kernel.gguf.hyperparameters import (
    Hyperparameters,
    IndexerPattern,
    contradictions,
    indexer_pattern,
    read_hyperparameters,
)
from glm5_kernel.gguf.layout import (
    Action,
    Cut,
    MemoryPerGpu,
    Placed,
    memory_per_gpu,
    place,
    possible_tps,
    tp_problems,
)
from glm5_kernel.gguf.names import TensorClass, indexer_layers, tensor_problems
from glm5_kernel.gguf.shards import Files, Model, open_model, shard_paths
from glm5_kernel.gguf.tables import FALLBACK, TOGETHER, hanging, table, terminal_width


@dataclass(frozen=True)
class ClassReport:
    """The tensors of one class to which the same is done.

    Attributes:
        kind: class; `mtp` for all of the MTP block.
        action: what becomes of them.
        cuts: how many are shared by ranks in which way.
        note: why, where that is no matter of course.
        tensors: how many.
        values: in them.
        bytes: in the file.
        types: how many tensors have which type.
    """

    kind: TensorClass
    action: Action
    note: str
    cuts: Mapping[Cut, int]
    tensors: int
    values: int
    bytes: int
    types: Mapping[str, int]


@dataclass(frozen=True)
class Inspection:
    """All that the headers of a model tell.

    Attributes:
        files: path and bytes of each.
        name: the model's, from the metadata; may be empty.
        version: of the format.
        hp: hyperparameters.
        pattern: which layers run their own indexer; None without one.
        values: parameters, MTP's included.
        bytes: of tensor data.
        classes: what becomes of the tensors.
        possible: numbers of GPUs that the model can be cut among.
        refused: why other powers of two are not among them.
        memory: for each number asked for that is possible.
        problems: why the model cannot be loaded, or a config.json contradicts it.
    """

    files: tuple[tuple[str, int], ...]
    name: str
    version: int
    hp: Hyperparameters
    pattern: IndexerPattern | None
    values: int
    bytes: int
    classes: tuple[ClassReport, ...]
    possible: tuple[int, ...]
    refused: Mapping[int, tuple[str, ...]]
    memory: tuple[MemoryPerGpu, ...]
    problems: tuple[str, ...]

    @property
    def bits(self) -> float:
        """Bits per parameter in the files."""
        return self.bytes * 8 / self.values


POWERS = (1, 2, 4, 8, 16)


def inspect_model(
    model: Model,
    *,
    config: Mapping[str, Any] | None = None,
    tps: Sequence[int] = POWERS,
    mtp: bool = False,
) -> Inspection:
    """What a model holds, what the adapter does with it and what GPUs need.

    Args:
        model: from `open_model`.
        config: config.json as it stands, where there is one: shared layers may stand there alone,
            and what contradicts the file is told.
        tps: numbers of GPUs to tell the memory for.
        mtp: whether speculative decoding by the MTP block is on.

    Raises:
        GgufError: the metadata are no model's.
    """
    hp = hyperparameters_of(model)
    pattern = indexer_pattern(hp, indexer_layers(model.tensors), config)
    infos = {name: located.info for name, located in model.tensors.items()}
    placed = place(infos.values(), hp, pattern, mtp=mtp)
    reasons = {tp: tuple(tp_problems(placed, hp, tp)) for tp in sorted({*tps, *POWERS})}
    return Inspection(
        files=tuple((shard.file, shard.size or 0) for shard in model.shards),
        name=str(model.metadata.get("general.name", "")),
        version=model.shards[0].version,
        hp=hp,
        pattern=pattern,
        values=sum(info.values for info in infos.values()),
        bytes=sum(info.nbytes for info in infos.values()),
        classes=_classes(placed, hp),
        possible=possible_tps(placed, hp),
        refused={tp: why for tp, why in reasons.items() if why},
        memory=tuple(
            memory_per_gpu(infos.values(), hp, pattern, tp, mtp=mtp)
            for tp in tps
            if not reasons[tp]
        ),
        problems=tuple(
            printable(problem)
            for problem in (
                *tensor_problems(infos, hp, pattern, mtp=mtp),
                *contradictions(config or {}, hp, pattern),
            )
        ),
    )


def hyperparameters_of(model: Model) -> Hyperparameters:
    """A model's hyperparameters; a vocabulary that the metadata omit is the embedding's.

    Raises:
        GgufError: the metadata are no model's.
    """
    table = model.tensors.get("token_embd.weight")
    vocab = table.info.ne[1] if table is not None and len(table.info.ne) > 1 else None
    return read_hyperparameters(model.metadata, vocab)


def _classes(placed: Sequence[Placed], hp: Hyperparameters) -> tuple[ClassReport, ...]:
    groups: dict[tuple[TensorClass, Action, str], list[Placed]] = {}
    for each in placed:
        mtp = each.weight.layer is not None and each.weight.layer >= hp.layers
        kind: TensorClass = "mtp" if mtp else each.weight.kind
        groups.setdefault((kind, each.action, each.note), []).append(each)
    order: tuple[TensorClass, ...] = get_args(TensorClass)
    return tuple(
        ClassReport(
            *key,
            cuts=dict(Counter(part.cut for part in parts).most_common()),
            tensors=len(parts),
            values=sum(part.info.values for part in parts),
            bytes=sum(part.info.nbytes for part in parts),
            types=dict(Counter(part.info.kind.name for part in parts).most_common()),
        )
        for key, parts in sorted(groups.items(), key=lambda item: order.index(item[0][0]))
    )


def as_json(found: Inspection) -> dict[str, Any]:
    """The same as plain values, for programs."""
    return asdict(found) | {
        "bits_per_weight": round(found.bits, 3),
        "refused": {str(tp): list(why) for tp, why in found.refused.items()},
    }


def as_text(found: Inspection, width: int = FALLBACK) -> str:
    """The same for people, in lines of at most `width` columns where words allow it."""
    sections = [
        *_about(found, width),
        "",
        *_tensors(found, width),
        "",
        *_memory(found, width),
        "",
        *_kv(found, width),
    ]
    if found.problems:
        sections += ["", "Problems"]
        sections += [line for problem in found.problems for line in hanging("  ", problem, width)]
    return "\n".join(sections)


def _about(found: Inspection, width: int) -> list[str]:
    hp = found.hp
    files = sum(size for _, size in found.files)
    first, more = found.files[0][0], len(found.files) - 1
    rows = [
        ("File", first + (f" and {more} more" if more else "")),
        ("Format", f"GGUF {found.version}, {hp.architecture}, {_size(files)}"),
        ("Model", found.name),
        ("Parameters", f"{_number(found.values)}, {found.bits:.2f} bits each"),
        ("Layers", _layers(hp)),
        ("Attention", f"{hp.heads} heads of {hp.nope}+{hp.rope}, values {hp.v}; "
                      f"latent {hp.kv_lora}+{hp.rope}, query rank {hp.q_lora or 'full'}"),
        ("Indexer", _indexer(found)),
        ("Experts", f"{hp.experts_used} of {hp.experts}, {hp.shared_experts} shared, "
                    f"{hp.moe_intermediate} wide, {hp.gating}, scale {hp.expert_scale:g}"),
        ("Widths", f"hidden {hp.hidden}, dense {hp.intermediate}, vocabulary {hp.vocab}"),
        ("Context", f"{hp.context} tokens, RoPE base {hp.rope_theta:g}, "
                    f"epsilon {hp.eps:g}"),
    ]  # fmt: skip
    told = ((f"{name + ':':<12} ", printable(text)) for name, text in rows if text)
    return [line for first, text in told for line in hanging(first, text, width)]


def _layers(hp: Hyperparameters) -> str:
    text = f"{hp.layers}, the first {hp.dense_layers} dense" if hp.dense_layers else f"{hp.layers}"
    return text + (f"; {hp.mtp_layers} MTP block" if hp.mtp_layers else "")


def _indexer(found: Inspection) -> str:
    indexer, pattern = found.hp.indexer, found.pattern
    if indexer is None or pattern is None:
        return ""
    shared = len(pattern.pattern) - pattern.full
    text = f"top {indexer.topk} by {indexer.heads} heads of {indexer.head_dim}; "
    if not shared:
        return text + "every layer has its own"
    return text + f"{pattern.full} layers have their own, {shared} share it ({pattern.origin})"


def _tensors(found: Inspection, width: int) -> list[str]:
    rows = [("Tensors", "number", "parameters", "in file", "types", "on a GPU")]
    for each in found.classes:
        types = ", ".join(f"{name}{TOGETHER}{count}" for name, count in each.types.items())
        rows.append(
            (each.kind.replace("shared_", "shared "), str(each.tensors),
             _number(each.values), _size(each.bytes), types, _fate(each))
        )  # fmt: skip
    return table(rows, {1, 2, 3}, width)


def _fate(each: ClassReport) -> str:
    note = f" ({each.note})" if each.note else ""
    if each.action == "skipped":
        return f"not loaded{note}"
    verbs = {
        "kept": "quantised",
        "float": "as a float",
        "dequantised": "dequantised",
        "reassembled": "dequantised",
    }
    ways = ("vocabulary", "heads", "rows", "columns")
    cuts = " or ".join(way for way in ways if way in each.cuts)
    whole = "whole" if "replicated" in each.cuts else ""
    parts = [verbs[each.action], f"cut by {cuts}" if cuts else "", whole]
    return ", ".join(filter(None, parts)) + note


def _memory(found: Inspection, width: int) -> list[str]:
    rows = [["GPUs", "weights on each", "cut", "whole", "of it dequantised"]]
    for each in found.memory:
        parts = (each.weights, each.sliced, each.replicated, each.dequantised)
        rows.append([str(each.tp), *map(_size, parts)])
    lines = table(rows, {0, 1, 2, 3, 4}, width) if len(rows) > 1 else []
    for tp, why in found.refused.items():
        more = f" (and {len(why) - 1} more)" * (len(why) > 1)
        lines += hanging(f"not {tp}: ", why[0] + more, width)
    return lines


def _kv(found: Inspection, width: int) -> list[str]:
    kv = found.memory[0].kv if found.memory else None
    if kv is None:
        return []
    tokens = sorted({min(32_768, found.hp.context), found.hp.context})
    rows = [["KV cache", "a token", *(f"{count:,} tokens" for count in tokens)]]
    names = ("bf16", "fp8_ds_mla" if found.hp.indexer else "fp8")
    for name, size in zip(names, (kv.bf16, kv.fp8), strict=True):
        rows.append([name, f"{size:,} B", *(_size(size * count) for count in tokens)])
    note = f"whole on every GPU; {kv.layers} layers"
    note += f" and {kv.indexer_layers} indexers ({kv.indexer:,} B of it)" if kv.indexer else ""
    return [*table(rows, {1, 2, 3}, width), *hanging("", note, width)]


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:,.2f} {unit}"
        size /= 1024
    return ""


def _number(count: float) -> str:
    for unit in ("", " K", " M", " B"):
        if count < 1000 or unit == " B":
            return f"{count:.0f}" if not unit else f"{count:,.2f}{unit}"
        count /= 1000
    return ""


def main(argv: Sequence[str] | None = None, files: Files | None = None) -> int:
    """Print what the given files hold. Exit 0; 1 where one cannot be loaded; 2 for wrong usage."""
    args = _arguments(argv)
    results = [_one(path, args, files) for path in _one_of_each(args.file)]
    if args.json:
        documents = [document for document, _, _ in results]
        print(json.dumps(documents[0] if len(args.file) == 1 else documents, indent=2))
    elif texts := [text for _, text, _ in results if text]:
        print("\n\n".join(texts))
    return max(code for _, _, code in results)


def _one_of_each(paths: Sequence[str]) -> list[str]:
    """Of a split's files the one that is named first: each tells of all."""
    models: dict[str, str] = {}
    for path in paths:
        try:
            models.setdefault(shard_paths(path)[0], path)
        except GgufError:
            models.setdefault(path, path)
    return list(models.values())


def _one(
    path: str, args: argparse.Namespace, files: Files | None
) -> tuple[dict[str, Any], str, int]:
    """A file's document, text and exit code."""
    try:
        model = open_model(path, files)
        config = read_config(args.config or Path(path).parent / "config.json", bool(args.config))
        found = inspect_model(model, config=config, tps=args.tp or POWERS, mtp=args.mtp)
    except (GgufError, OSError) as error:
        problems = _problems(error)
        if not args.json:
            print("\n".join(f"error: {problem}" for problem in problems), file=sys.stderr)
        return {"files": [[path, 0]], "problems": problems}, "", 1
    return as_json(found), as_text(found, terminal_width()), 1 if found.problems else 0


def _problems(error: GgufError | OSError) -> list[str]:
    if isinstance(error, GgufError):
        return list(error.problems)
    return [printable(f"{error.filename}: {error.strerror}" if error.filename else str(error))]


def read_config(path: str | Path, needed: bool) -> dict[str, Any]:
    """A config.json; empty where there is none and none is needed.

    Raises:
        GgufError: it is no JSON object.
        OSError: it is needed and cannot be read.
    """
    if not needed and not Path(path).is_file():
        return {}
    try:
        config = json.loads(Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise GgufError(f"{path}: no JSON: {error}") from None
    if not isinstance(config, dict):
        raise GgufError(f"{path}: a {type(config).__name__}; an object is right")
    return config


def _gpus(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} GPUs; at least 1 is right")
    return number


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m glm5_kernel inspect",
        description="What GGUF files hold, what the adapter does with it and what GPUs need.",
    )
    parser.add_argument("file", nargs="+", help="a model's file; of a split any shard")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--tp",
        type=_gpus,
        action="append",
        metavar="N",
        help="tell the memory for N GPUs (repeatable; default 1, 2, 4, 8, 16)",
    )
    parser.add_argument("--mtp", action="store_true", help="with speculative decoding by MTP")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="config.json to compare (default: the one beside the file, if any)",
    )
    return parser.parse_args(argv)
