"""What every server is asked: fixed random token ids, prompts with shared beginnings."""

from __future__ import annotations

import numpy as np

from . import model

LENGTHS = (10, 400, 2000, 5000, 12000)
CONTINUED = 48  # tokens that are decoded after each of these prompts
CROWD = 64
CROWD_TOKENS = 16
CROWD_ALONE = 24  # of the crowd's prompts, so many are also asked alone
SHARED = 1024  # tokens with which every other prompt of the crowd begins
FIRST = 3  # the first id that is no special token


def _ids(stream: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in stream.integers(FIRST, model.VOCAB, count)]


def single() -> dict[str, list[int]]:
    """The prompts that are compared position by position, by their length in tokens."""
    return {str(n): _ids(np.random.Generator(np.random.PCG64([7, n])), n) for n in LENGTHS}


def crowd() -> list[list[int]]:
    """Prompts of 12 to about 5,000 tokens in random order."""
    stream = np.random.Generator(np.random.PCG64(8))
    lengths = np.geomspace(12, 4000, CROWD).astype(int)
    stream.shuffle(lengths)
    shared = _ids(stream, SHARED)
    prompts = [_ids(stream, int(n)) for n in lengths]
    return [shared + ids if i % 2 else ids for i, ids in enumerate(prompts)]
