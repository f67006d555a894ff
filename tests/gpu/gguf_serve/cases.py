"""The files that are made and the servers that serve them.

Every form of a file that the adapter treats differently is served once: quantisations, 5.2's shared
layers omitted, repeated and unnamed, kv_b split and whole, MTP; and each choice of the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LENGTHS = (12, 700, 3000)
"""Of prompts in tokens; the last is beyond a top-k of 2,048, the last two beyond 512."""
DECODED = 32
CONTEXT = 8192
MOST_IN_GRAPHS = 512  # no graph is captured for more tokens
FLASHMLA = "FLASHMLA_SPARSE"


@dataclass(frozen=True)
class Model:
    """A file. `form` has arguments of `make_spec`, `bare` that config.json tells the least."""

    name: str
    form: Mapping[str, Any] = field(default_factory=dict)
    split: int = 1
    bare: bool = False

    @property
    def quant(self) -> str:
        return str(self.form.get("quant", "q8_0"))

    @property
    def floats(self) -> bool:
        return self.quant in ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Case:
    """A server.

    Args:
        model: name of its file.
        kv: `bf16`, `fp16` (the model, too) or `fp8`.
        backend: of attention; a stock one takes stock's indexer, too.
        graphs: compiled, with CUDA graphs.
        drafts: tokens that MTP drafts.
        tensor_parallel: GPUs; `all_reduce`: vLLM's own all-reduce between them.
    """

    name: str
    model: str
    kv: str = "bf16"
    backend: str = "CUSTOM"
    graphs: bool = False
    drafts: int = 0
    tensor_parallel: int = 1
    all_reduce: bool = False

    @property
    def ours(self) -> bool:
        return self.backend == "CUSTOM"


V2: Mapping[str, Any] = {"variant": "glm5.2"}
MODELS = {
    model.name: model
    for model in (
        Model("q8_0", {"topk": 2048}, split=3),
        Model("q8_0-k512", {"kv_b": "flat"}, split=2),
        Model("q4_k", {"topk": 2048, "quant": "q4_k"}),
        Model("q4_k-k512", {"quant": "q4_k", "kv_b": "whole"}),
        Model("ud", {"topk": 2048, "quant": "ud"}, split=3, bare=True),
        Model("mixed-k512", {"quant": "mixed"}, split=2),
        Model("mxfp4-k512", {"quant": "mxfp4"}),
        Model("bf16-k512", {"quant": "bf16"}),
        Model("f16", {"topk": 2048, "quant": "f16"}),
        Model("q8_0-mtp", {"topk": 2048, "mtp": True}, split=2),
        Model("5.2-omitted", {**V2, "shared": "omit"}, split=3, bare=True),
        Model("5.2-omitted-no-types", {**V2, "shared": "omit", "types": False, "quant": "ud"}),
        Model("5.2-repeated", {**V2, "topk": 2048, "shared": "repeat", "quant": "ud"}),
        Model(
            "5.2-repeated-no-types",
            {**V2, "shared": "repeat", "types": False, "changes": {"context": 1 << 20}},
            bare=True,
        ),
        Model("5.2-mtp", {**V2, "topk": 2048, "mtp": True, "quant": "ud"}, split=2),
    )
}

SINGLE = (
    Case("q8_0", "q8_0", graphs=True),
    Case("q8_0-fp8", "q8_0", "fp8"),
    Case("q8_0-stock", "q8_0", backend=FLASHMLA),
    Case("q8_0-k512", "q8_0-k512"),
    Case("q4_k", "q4_k", graphs=True),
    Case("q4_k-k512", "q4_k-k512", "fp8"),
    Case("ud", "ud"),
    Case("mixed-k512", "mixed-k512"),
    Case("mxfp4-k512", "mxfp4-k512"),
    Case("bf16-k512", "bf16-k512"),
    Case("f16", "f16", "fp16"),
    Case("q8_0-mtp", "q8_0-mtp", graphs=True, drafts=1),
    Case("5.2-omitted", "5.2-omitted"),
    Case("5.2-omitted-no-types", "5.2-omitted-no-types"),
    Case("5.2-repeated", "5.2-repeated"),
    Case("5.2-repeated-no-types", "5.2-repeated-no-types"),
    Case("5.2-mtp", "5.2-mtp", drafts=2),
)
TP2 = (
    Case("q8_0-tp2", "q8_0", tensor_parallel=2),
    Case("q8_0-tp2-all-reduce", "q8_0", graphs=True, tensor_parallel=2, all_reduce=True),
    Case("mixed-k512-tp2", "mixed-k512", tensor_parallel=2),
    Case("5.2-repeated-tp2", "5.2-repeated", "fp8", tensor_parallel=2),
    Case("5.2-mtp-tp2", "5.2-mtp", drafts=1, tensor_parallel=2),
)
PARTS = {"single": SINGLE, "tp2": TP2}
ALL = {case.name: case for cases in PARTS.values() for case in cases}

KV = {"bf16": "auto", "fp16": "auto", "fp8": "fp8_ds_mla"}


def arguments(case: Case, file: str, port: int) -> list[str]:
    """What follows `vllm serve`; `file` is the first of the model's GGUF files."""
    given = [
        file,
        *("--load-format", "gguf", "--host", "127.0.0.1", "--port", str(port)),
        *("--served-model-name", "model", "--attention-backend", case.backend),
        *("--block-size", "64", "--kv-cache-dtype", KV[case.kv]),
        *("--dtype", "float16" if case.kv == "fp16" else "bfloat16"),
        *("--max-model-len", str(CONTEXT), "--max-num-batched-tokens", "2048"),
        *("--max-num-seqs", "16", "--gpu-memory-utilization", "0.03"),
        *("--kv-cache-memory-bytes", str(1 << 29), "--enable-prefix-caching"),
        *("--enable-prompt-tokens-details", "--seed", "0"),
    ]
    if not case.graphs:
        given.append("--enforce-eager")
    if case.drafts:
        draft = {"method": "mtp", "num_speculative_tokens": case.drafts}
        draft["attention_backend"] = case.backend  # vLLM chooses the draft's by itself otherwise
        given += ["--speculative-config", json.dumps(draft)]
    if case.tensor_parallel > 1:
        given += ["--tensor-parallel-size", str(case.tensor_parallel)]
        if not case.all_reduce:
            given.append("--disable-custom-all-reduce")
    return given


def environment(case: Case) -> dict[str, str]:
    """What differs from case to case."""
    return {"GLM5_INDEXER": "triton" if case.ours else "stock"}


def bound(case: Case) -> float:
    """The largest mean |Δ log p| from the reference, as a multiple of what computing in bf16 costs
    transformers on the same weights and prompts.

    A file's floats are multiplied as in bf16: 2 leaves room for another order of roundings.
    vLLM-gguf-plugin's kernels also quantise activations to 8 bits, 127 steps to the largest of 32
    values: 0.005 of a normal value (root mean square), where bf16 moves it by 0.001. That is one of
    several roundings between a layer's input and its output, hence 4. fp8_ds_mla rounds latents by
    0.026 of themselves, in attention alone, where many are averaged: half as much again.
    What a wrong selection would cost stands in the results as `all_selected`.
    """
    model = MODELS[case.model]
    return (2.0 if model.floats else 4.0) * (1.5 if case.kv == "fp8" else 1.0)
