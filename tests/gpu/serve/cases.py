"""The servers that are started: a pairwise table for ours, and the stock backends to compare with.

`OURS` holds every pair of values of any two columns at least once (tests/unit/test_serve_proof.py
checks it). What is mathematically the same is compared across rows: graphs, prefix caching,
chunks and speculation must not change an answer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

KV = {"bf16": "auto", "fp16": "auto", "fp8": "fp8_ds_mla"}
WHOLE, SMALL = 8192, 512
DRAFTS = 3


@dataclass(frozen=True)
class Case:
    """One `vllm serve`.

    Args:
        backend: a name of vLLM's, or CUSTOM for ours with our indexer.
        kv: bf16, fp16 (model and cache) or fp8 (fp8_ds_mla, model in bf16).
        graphs: compiled with CUDA graphs; otherwise `--enforce-eager`.
        prefix: prefix caching.
        chunk: `--max-num-batched-tokens`; longer prompts are prefilled in chunks.
        topk: the model's index_topk.
        mqa: short prefills go to the sparse kernel, too (`sparse_mla_force_mqa`).
        drafts: speculative decoding by n-gram look-up, so many tokens at a time.
        tensor_parallel: GPUs.
        invariant: vLLM's deterministic mode, `VLLM_BATCH_INVARIANT=1`.
    """

    name: str
    backend: str
    kv: str
    graphs: bool = True
    prefix: bool = True
    chunk: int = WHOLE
    topk: int = 2048
    mqa: bool = False
    drafts: int = 0
    tensor_parallel: int = 1
    invariant: bool = False

    @property
    def ours(self) -> bool:
        return self.backend == "CUSTOM"


FLASHMLA, FLASH_ATTN = "FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE"

STOCK = (
    Case("flashmla-bf16", FLASHMLA, "bf16"),
    Case("flashattn-bf16", FLASH_ATTN, "bf16"),
    Case("flashmla-fp8", FLASHMLA, "fp8"),
    Case("flashmla-bf16-k512", FLASHMLA, "bf16", graphs=False, topk=512, mqa=True),
    Case("flashattn-bf16-k512", FLASH_ATTN, "bf16", graphs=False, topk=512, mqa=True),
    Case("flashmla-fp8-k512", FLASHMLA, "fp8", graphs=False, topk=512, mqa=True),
    Case("flashattn-fp16", FLASH_ATTN, "fp16", graphs=False),
    Case("flashattn-fp16-k512", FLASH_ATTN, "fp16", graphs=False, topk=512),
)

OURS = (
    Case("ours-bf16", "CUSTOM", "bf16"),
    Case("ours-fp8", "CUSTOM", "fp8"),
    Case("ours-fp8-k512-spec", "CUSTOM", "fp8", False, False, SMALL, 512, True, DRAFTS),
    Case("ours-fp16-k512-spec", "CUSTOM", "fp16", False, True, WHOLE, 512, False, DRAFTS),
    Case("ours-bf16-k512", "CUSTOM", "bf16", True, False, SMALL, 512, True),
    Case("ours-fp16-spec", "CUSTOM", "fp16", True, False, SMALL, 2048, False, DRAFTS),
    Case("ours-fp16-mqa", "CUSTOM", "fp16", False, False, WHOLE, 2048, True),
    Case("ours-bf16-k512-spec", "CUSTOM", "bf16", False, True, SMALL, 512, True, DRAFTS),
)

DETERMINISTIC = (
    Case("ours-bf16-invariant", "CUSTOM", "bf16", prefix=False, mqa=True, invariant=True),
    Case("ours-fp8-invariant", "CUSTOM", "fp8", graphs=False, mqa=True, invariant=True),
)

TENSOR_PARALLEL = (
    Case("flashmla-bf16-tp2", FLASHMLA, "bf16", graphs=False, tensor_parallel=2),
    Case("ours-bf16-tp2", "CUSTOM", "bf16", tensor_parallel=2),
    Case("ours-fp8-tp2", "CUSTOM", "fp8", graphs=False, tensor_parallel=2),
)

THROUGHPUT = ("flashmla-bf16", "flashattn-bf16", "flashmla-fp8", "ours-bf16", "ours-fp8")

PARTS = {
    "stock": STOCK,
    "ours": OURS + DETERMINISTIC,
    "tp2": TENSOR_PARALLEL,
}
ALL = {case.name: case for cases in PARTS.values() for case in cases}


def peers(case: Case) -> list[str]:
    """Names of the stock cases that the case is compared with: same top-k, and first of all same
    cache; fp8 also with bf16, as the yardstick is for stock's fp8."""
    wanted = ("fp8", "bf16") if case.kv == "fp8" else (case.kv,)
    return [
        other.name
        for other in (*STOCK, *TENSOR_PARALLEL)
        if not other.ours
        and other.name != case.name
        and other.topk == case.topk
        and other.kv in wanted
        and other.tensor_parallel in (1, case.tensor_parallel)
    ]


def cache_bytes(*, measured: bool) -> int:
    """KV cache of a server: 200,000 tokens for answers; 64 requests of 8,128 tokens, of the deep
    model's 30 kB each, where speed is measured."""
    return (18 if measured else 1) * 2**30


def arguments(case: Case, model: str, port: int, *, measured: bool = False) -> list[str]:
    """What follows `vllm serve`."""
    cache = str(cache_bytes(measured=measured))
    given = [
        model,
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"),
        *("--attention-backend", case.backend, "--block-size", "64"),
        *("--dtype", "float16" if case.kv == "fp16" else "bfloat16"),
        *("--kv-cache-dtype", KV[case.kv]),
        *("--max-num-batched-tokens", str(case.chunk), "--max-num-seqs", "64"),
        *("--gpu-memory-utilization", "0.03", "--kv-cache-memory-bytes", cache),
        "--enable-prefix-caching" if case.prefix else "--no-enable-prefix-caching",
        *("--enable-prompt-tokens-details", "--seed", "0"),
    ]
    if not case.graphs:
        given.append("--enforce-eager")
    if case.mqa:
        given += ["--attention-config", json.dumps({"sparse_mla_force_mqa": True})]
    if case.drafts:
        look_up = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
        speculative = {"method": "ngram", "num_speculative_tokens": case.drafts, **look_up}
        given += ["--speculative-config", json.dumps(speculative)]
    if case.tensor_parallel > 1:
        parallel = ["--tensor-parallel-size", str(case.tensor_parallel)]
        given += [*parallel, "--disable-custom-all-reduce"]
    return given


def environment(case: Case) -> dict[str, str]:
    """What differs from case to case; `servers.environment` has the rest."""
    found = {}
    if case.ours:
        found["GLM5_INDEXER"] = "triton"
    if case.invariant:
        found["VLLM_BATCH_INVARIANT"] = "1"
    return found


def fingerprint(case: Case, weights: str, kernels: str) -> str:
    """What answers depend on: they are asked for again when it changes.

    Args:
        kernels: digest of our sources; stock servers do not run them.
    """
    ours = {"kernels": kernels} if case.ours else {}
    return json.dumps({**asdict(case), "weights": weights, **ours}, sort_keys=True)
