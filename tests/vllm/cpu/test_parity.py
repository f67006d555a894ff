"""GLM-5 in GGUF on vLLM for the CPU: every log-probability, against transformers.

The reference holds the weights of the file, dequantised to float32 by gguf-py. vLLM with our
adapter holds the same values: what stays quantised is decoded by the same rule when it is used, and
activations stay float32. So files of every type have one bound, that of float32 sums in another
order. A sum of n products errs by about sqrt(n) * 2^-24 of its size: with n of at most 1024, 5
layers of 8 such sums each, and logits of up to 30, that is 30 * sqrt(40) * 32 * 2^-24 = 4e-4 where
all errors are as large as they can be; measured are some 1e-5. A weight that is read wrongly, an
epsilon of 1e-6 instead of 1e-5 or a RoPE of the other kind gives 1e-2 and more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from glm5_kernel.gguf.tiny.reference import build_model, log_probabilities, read_tensors
from glm5_kernel.gguf.tiny.spec import config

from tests.vllm.cpu.engine import answers, serving
from tests.vllm.gguf.files import make_files

BOUND = 1e-3
NEW = 8
CASES: dict[str, dict[str, Any]] = {
    "glm5 f32": {"quant": "f32", "layers": 2},
    # shared layers without an indexer, a file in parts, a config that the file completes
    "glm5.2 q8_0": {"variant": "glm5.2", "quant": "q8_0", "layers": 5, "split": 3, "bare": True},
    # fused weights of unlike types, K and IQ types, floats beside them, an MTP block left out
    "glm5 mixed": {"quant": "mixed", "layers": 2, "mtp": True, "changes": {"q_lora": 256}},
    "glm5 q4_k": {"quant": "q4_k", "layers": 2, "changes": {"q_lora": 256}, "kv_b": "flat"},
}
PROMPTS = [[int(n) for n in torch.randint(256, (count,), generator=torch.manual_seed(count))]
           for count in (1, 17, 60)]  # fmt: skip


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Of each prompt: tokens, vLLM's log-probabilities and the reference's."""
    folder: Path = tmp_path_factory.mktemp("model")
    spec, paths = make_files(folder, dims="demo", **request.param)
    reference = build_model(config(spec), read_tensors(paths), spec.hp, spec.pattern)
    with serving(paths[-1], spec.hp.vocab) as llm:
        found = answers(llm, PROMPTS, NEW, spec.hp.vocab)
    return [(tokens, rows, log_probabilities(reference, tokens)) for tokens, rows in found]


def test_every_log_probability_is_the_references(
    compared: list[tuple[list[int], torch.Tensor, torch.Tensor]],
) -> None:
    for prompt, (tokens, ours, theirs) in zip(PROMPTS, compared, strict=True):
        assert len(tokens) == len(prompt) + NEW - 1
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) <= BOUND


def test_the_model_listens(compared: list[tuple[list[int], torch.Tensor, torch.Tensor]]) -> None:
    """What it says depends on what it was told, so that the comparison can fail."""
    rows = torch.cat([theirs[-NEW:] for _, _, theirs in compared])
    assert float((rows[0] - rows[NEW]).abs().max()) > 1
