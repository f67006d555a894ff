"""How a model is served, and to whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setup:
    """A server's options.

    Args:
        kv: `--kv-cache-dtype`.
        drafts: most tokens that a request is given to verify at a time.
        mtp: whether they come from the model's own layer, always as many; else from anywhere.
        graphs: whether decoded batches are padded to sizes of CUDA graphs.
        invariant: VLLM_BATCH_INVARIANT.
        mqa: whether short prefills reach our kernel, too.
        logits_mb: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB.
        chunk: `--max-num-batched-tokens`.
        longest: tokens of the longest prompt.
    """

    heads: int = 8
    dtype: str = "bfloat16"
    kv: str = "auto"
    topk: int = 2048
    drafts: int = 0
    mtp: bool = False
    graphs: bool = False
    invariant: bool = False
    mqa: bool = False
    logits_mb: int = 512
    chunk: int = 1024
    longest: int = 9000

    @property
    def room(self) -> int:
        """`--max-model-len`: an even number of pages; with an odd one vLLM 0.26 fails on drafts."""
        return -(-(self.longest + 100) // 128) * 128


@dataclass(frozen=True)
class Prompt:
    """Args: step: when it comes. shared: how many tokens it begins with that others begin with."""

    step: int
    tokens: int
    answer: int = 4
    shared: int = 0


def traffic(setup: Setup) -> list[Prompt]:
    """Prompts of many lengths, alone and together, whole and in chunks, new and known before."""
    alone = [Prompt(0, setup.longest, 3), Prompt(4, 1), Prompt(8, 3)]
    known = [Prompt(12, setup.longest, 3, setup.longest - 700), Prompt(12, 30)]
    some = [Prompt(14 + n, tokens, n) for n, tokens in enumerate((700, 129, 2100, 64, 5), 2)]
    many = [Prompt(24, 1 + n % 23, 2 + n % 9) for n in range(SEATS + 5)]
    return alone + known + some + many


SEATS = 40
"""`--max-num-seqs`."""


@dataclass(frozen=True)
class Served:
    """What became of a setup.

    Args:
        forms: that the start has compiled.
        met: kinds of batches that were served.
        new: forms that were compiled while serving.
    """

    setup: Setup
    forms: int
    met: frozenset[str]
    new: tuple[tuple[str, str], ...]
