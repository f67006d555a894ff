"""What vLLM's arguments, GPUs and the smoke test say of each other: contradictions that would come
to light only when the model has loaded.

Only a profile that runs ``vllm serve`` is judged; what other engines take is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from glm5_deploy.config.dotted import read_value
from glm5_deploy.config.errors import ConfigProblem
from glm5_deploy.config.models import Profile, option_name
from glm5_deploy.config.node import Node
from glm5_deploy.config.numbers import fraction, is_automatic, whole
from glm5_deploy.config.validate import describe

_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_SIZES = (
    *_PARALLEL, "max-model-len", "max-num-seqs", "max-num-batched-tokens", "block-size",
    "kv-cache-memory-bytes",
)  # fmt: skip
_ELSEWHERE = ("config", "nnodes", "data-parallel-size-local", "data-parallel-address")
"""Arguments that leave the numbers to a file, or spread the server over several hosts."""

_KERNEL_CACHES = ("auto", "float16", "bfloat16", "fp8_ds_mla")
"""As `glm5_kernel.attention.backend` supports them; a test compares the two."""

_ROOM = 0.95
"""The needle's text is made to a length by an estimate, and a chat template adds to it."""


def serving_problems(profile: Node, read: Profile) -> list[ConfigProblem]:
    """Contradictions of a complete profile.

    Args:
        profile: merged and rendered, with its places.
        read: the same as a model, with all defaults.
    """
    if not runs_vllm(read):
        return []
    node = profile.at("serve", "args")
    given = (node.mapping if node else {}).items()
    arguments = {option_name(key): each for key, each in given if each.value is not None}
    if any(key in arguments for key in _ELSEWHERE):
        return []
    return [
        *_passed_over(arguments),
        *_overwritten(arguments),
        *_sizes(arguments),
        *_workers(profile, read, arguments),
        *_shares(arguments),
        *_batches(arguments),
        *_lengths(profile, read, arguments),
        *_kernel_cache(read, arguments),
        *_expected(profile, read, arguments),
    ]


def runs_vllm(read: Profile) -> bool:
    """Whether the engine is ``vllm serve``."""
    command = read.engine.command
    return "serve" in command[1:] and command[0].rpartition("/")[2] == "vllm"


def _passed_over(arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    """vLLM makes one mapping of what is given with dots, which takes the place of a whole one."""
    for name, node in arguments.items():
        part = next((key for key in arguments if key.startswith(f"{name}.")), None)
        if part is not None and "." not in name:
            hint = f"write all of it as one mapping under `{name}`, or all with dots"
            message = f"vLLM passes over it where `{part}` is given"
            yield node.problem(message, hint, at_key=True)


def _overwritten(arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    """Of a part that is no mapping, and a part of it, vLLM keeps whatever comes last."""
    for name, node in arguments.items():
        part = next((key for key in arguments if key.startswith(f"{name}.")), None)
        if part is None or "." not in name:
            continue
        if not isinstance(read_value(node.value), dict):
            message = f"a value, and `{part}` a part of it: vLLM keeps one of them"
            yield node.problem(message, "keep one of them", at_key=True)


def _sizes(arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    for key in _SIZES:
        node = arguments.get(key)
        if node is None or (key == "max-model-len" and is_automatic(node.value)):
            continue
        if _value(arguments, key) is None:
            yield node.problem(f"a whole number above 0 is right, found {describe(node)}")


def _workers(
    profile: Node, read: Profile, arguments: Mapping[str, Node]
) -> Iterator[ConfigProblem]:
    """As many workers as GPUs."""
    count = read.gpus.count
    named = [(key, arguments[key]) for key in _PARALLEL if key in arguments]
    numbers = [_value(arguments, key) for key, _ in named]
    if count == 0 or None in numbers:
        return
    workers = 1
    for each in numbers:
        workers *= each or 1
    if workers == count:
        return
    what = " × ".join(f"{key} {node.value}" for key, node in named) or "no tensor-parallel-size"
    place = named[0][1] if named else profile.at("gpus", "count") or profile
    yield place.problem(
        f"{what}: {workers} of {count} GPUs are used"
        if workers < count
        else f"{what}: {workers} GPUs are needed, and `gpus.count` is {count}",
        "make tensor-parallel-size and gpus.count agree (one variable, where the profile has it)",
    )


def _shares(arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    node = arguments.get("gpu-memory-utilization")
    share = None if node is None else fraction(node.value)
    if node is not None and (share is None or not 0 < share <= 1):
        yield node.problem("a share of each GPU's memory: more than 0, at most 1", "such as 0.92")


def _batches(arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    """vLLM refuses batches that hold fewer tokens than requests, or than a prompt in one piece."""
    node = arguments.get("max-num-batched-tokens")
    tokens = _value(arguments, "max-num-batched-tokens")
    if node is None or tokens is None:
        return
    sequences = _value(arguments, "max-num-seqs")
    if sequences is not None and tokens < sequences:
        yield node.problem(f"fewer tokens in a batch than max-num-seqs: {sequences}")
    context, chunked = _value(arguments, "max-model-len"), arguments.get("enable-chunked-prefill")
    in_one_piece = chunked is not None and chunked.value is False
    if in_one_piece and context is not None and tokens < context:
        yield node.problem(
            f"without chunked prefill a batch must hold max-model-len: {context} tokens",
            "raise it, or set enable-chunked-prefill: true",
        )


def _lengths(
    profile: Node, read: Profile, arguments: Mapping[str, Node]
) -> Iterator[ConfigProblem]:
    """The smoke test's prompts must be taken by the server."""
    context, smoke = _value(arguments, "max-model-len"), read.smoke
    if context is None:
        return
    prompt, needle = smoke.prompt_tokens, smoke.needle
    if prompt is not None and prompt + smoke.max_tokens > context:
        most = max(context - smoke.max_tokens, 0)
        yield _at(profile, ("smoke", "prompt_tokens"), ("smoke",)).problem(
            f"{prompt} tokens and an answer of {smoke.max_tokens} are more than max-model-len:"
            f" {context}",
            f"set smoke.prompt_tokens to {most} at most, or null",
        )
    if needle is not None and needle.tokens + needle.max_tokens > context:
        most = int(max(context * _ROOM - needle.max_tokens, 0))
        yield _at(profile, ("smoke", "needle", "tokens"), ("smoke", "needle")).problem(
            f"{needle.tokens} tokens and an answer of {needle.max_tokens} are more than"
            f" max-model-len: {context}",
            f"set smoke.needle.tokens to {most} at most, or smoke.needle: null",
        )


def _kernel_cache(read: Profile, arguments: Mapping[str, Node]) -> Iterator[ConfigProblem]:
    """The attention of glm5-kernel takes few caches, and says so when the server starts."""
    node, backend = arguments.get("kv-cache-dtype"), _text(arguments, "attention-backend") or ""
    if node is None or not read.engine.kernel or backend.upper() != "CUSTOM":
        return
    if node.text not in _KERNEL_CACHES:
        yield node.problem(
            f"glm5-kernel's attention (CUSTOM) takes {', '.join(_KERNEL_CACHES)};"
            f" found {describe(node)}"
        )


def _expected(
    profile: Node, read: Profile, arguments: Mapping[str, Node]
) -> Iterator[ConfigProblem]:
    """What the smoke test expects of backend, KV cache and indexer is what was asked for."""
    wanted = read.smoke
    backend = _text(arguments, "attention-backend")
    ours = backend is None or backend.upper() == "CUSTOM"
    if wanted.attention_backend and backend and not ours:
        expected = wanted.attention_backend.removeprefix("AttentionBackendEnum.")
        if expected.upper() != backend.upper():
            yield _differs(profile, "attention_backend", f"attention-backend: {backend}")
    cache = _text(arguments, "kv-cache-dtype")
    fp8 = None if cache is None else cache.startswith("fp8")
    if wanted.kv_cache and fp8 is not None and wanted.kv_cache.startswith("fp8") != fp8:
        yield _differs(profile, "kv_cache", f"kv-cache-dtype: {cache}")
    indexer = read.environment.get("GLM5_INDEXER")
    if wanted.indexer and indexer in {"stock", "triton"} and indexer != wanted.indexer:
        yield _differs(profile, "indexer", f"environment.GLM5_INDEXER: {indexer}")


def _differs(profile: Node, key: str, asked: str) -> ConfigProblem:
    node = _at(profile, ("smoke", key), ("smoke",))
    return node.problem(
        f"the smoke test expects {node.value}, and the profile asks for {asked}",
        f"change both: smoke.{key} is what each worker must report; null expects nothing",
    )


def _at(profile: Node, *paths: tuple[str, ...]) -> Node:
    found = (profile.at(*path) for path in paths)
    return next((node for node in found if node is not None), profile)


def _text(arguments: Mapping[str, Node], key: str) -> str | None:
    node = arguments.get(key)
    return None if node is None else node.text


def _value(arguments: Mapping[str, Node], key: str) -> int | None:
    """A number above 0, or None for what is none, such as ``auto``."""
    node = arguments.get(key)
    number = None if node is None else whole(key, node.value)
    return number if number is not None and number > 0 else None
