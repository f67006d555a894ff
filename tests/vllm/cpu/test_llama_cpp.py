"""GLM-5 on vLLM for the CPU answers as llama.cpp does, which shares no code with either side.

F32 files alone: llama.cpp quantises activations beside quantised weights. Needs xllamacpp, which
the ordinary suite does not install.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.slow

from tests.kernel.gguf.test_llama_cpp import answers as llama_answers  # noqa: E402
from tests.vllm.cpu.engine import answers, serving  # noqa: E402
from tests.vllm.gguf.files import make_files  # noqa: E402

PROMPTS = [[65, 300, 301, 44, 200, 17, 90], list(range(40, 140))]
NEW = 16


@pytest.mark.parametrize("variant", ["glm5", "glm5.2"])
def test_log_probabilities_agree(tmp_path: Path, variant: str) -> None:
    spec, paths = make_files(tmp_path, variant=variant, dims="demo", layers=5, quant="f32")
    with serving(paths[0], spec.hp.vocab) as llm:
        ours = answers(llm, PROMPTS, NEW, spec.hp.vocab)
    theirs = llama_answers(paths[0], PROMPTS)
    for prompt, (tokens, rows), steps in zip(PROMPTS, ours, theirs, strict=True):
        assert tokens[len(prompt) :] == [step["id"] for step in steps][:-1]
        for row, step in zip(rows[-NEW:], steps, strict=True):
            for each in step["top_logprobs"]:
                assert abs(float(row[each["id"]]) - each["logprob"]) < 1e-3
