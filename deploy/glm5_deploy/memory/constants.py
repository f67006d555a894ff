"""What vLLM takes of a GPU beside weights and KV cache: figures, each with its source.

Formulas of vLLM are those of 0.26.0. What is marked *estimate* cannot be read anywhere, and is
checked against a running server (tests/gpu).
"""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20

CUDA_SHARE = 0.993
"""Of what nvidia-smi calls a GPU's memory, what CUDA has: 139.8 of 140.4 GiB on an H200, 94.97 of
95.6 GiB on an RTX PRO 6000 (as torch's own messages say); the rest is the driver's."""

BLOCK = 64
"""Tokens of a page: the indexer's cache allows only 64 on CUDA."""

LARGE_GPU = 70 * GIB
BATCHED_TOKENS = {True: 8192, False: 2048}
SEQUENCES = {True: 1024, False: 256}
"""`--max-num-batched-tokens` and `--max-num-seqs` of a server, on a GPU of 70 GiB or more and on
smaller ones (vllm/engine/arg_utils.py, `get_batch_defaults`)."""

INDEXER_ROWS = 40
"""Rows of the indexer's buffer for prefills, for each token of context
(v1/attention/backends/mla/indexer.py, `get_max_prefill_buffer_size`)."""

INDEXER_LOGITS = 512 * MIB
"""`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB` by default (vllm/envs.py)."""

CHUNK_ROWS = 64 << 10
"""Most rows of context that a prefill expands at once (`determine_chunked_prefill_workspace_size`
in model_executor/layers/attention/sparse_mla_attention.py)."""

KERNELS = 62 * MIB
"""Scratch of glm5-kernel's sparse attention and of its top-k, made with the model: at most 26 and
37 MB on an RTX PRO 6000 (with an fp8 cache), a little more with all multiprocessors of its chip, 9
and 26 MB on an H200."""

INVARIANT_TOKENS = 1024
INVARIANT_HEAD = 4 * 514 * 4
"""Scratch of the attention besides, where results must not depend on the batch: so many bytes for
each of so many tokens and each head of a GPU, the float32 results of four parts with their sums
(glm5_kernel/attention/limits.py, `DETERMINISTIC_TOKENS`)."""

HIDDEN_COPIES = 6
"""*Estimate*: tensors of the size of a batch's hidden states that live at once: the residual, the
norm's input and output, queries before and after absorption."""

SAMPLER_COPIES = 3
"""*Estimate*: float32 tensors of [sequences, vocabulary] in the sampler: logits, their copy,
probabilities."""

DRIVER = 350 * MIB
"""*Estimate*: what CUDA's libraries take after vLLM's first look at the GPU: 0.22 GiB on one H200,
0.07 GiB on each of two (docs/gpu-host.md)."""

CONTEXT = 550 * MIB
"""What a CUDA context takes before that look, and so beside vLLM's share: 139.8 - 139.29 GiB on an
H200."""

COLLECTIVES = 1450 * MIB
"""The same of NCCL and its mappings of the other GPUs, with several: vLLM starts it before it looks
(v1/worker/gpu_worker.py, `init_device`). 139.8 - 137.9 GiB with the context on each of two H200s,
40 MiB more with the custom all-reduce. *Estimate* for other links and more GPUs."""

GRAPHS = 900 * MIB
"""*Estimate*: CUDA graphs of all sizes; none with `--enforce-eager`."""

MOST_UTILIZATION = 0.95
"""Higher is never advised: fragments and what is allocated after the profiling need room."""
