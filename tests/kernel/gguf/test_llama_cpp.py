"""llama.cpp computes what the reference does: files and reference are right, not only alike.

llama.cpp quantises activations beside quantised weights, so only F32 files can agree closely.
Needs the package xllamacpp, which the ordinary suite does not install.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from glm5_kernel.gguf.tiny import main
from glm5_kernel.gguf.tiny.golden import read_golden

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.slow

SERVE = """
import json, sys
import xllamacpp as llama
params = llama.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = params.n_batch = params.n_ubatch = 1024
params.n_parallel, params.warmup, params.verbosity = 1, False, -1
params.cpuparams.n_threads = 1
params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_F32
params.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = llama.Server(params)
for prompt in json.load(sys.stdin):
    answer = server.handle_completions({
        "prompt": prompt, "n_predict": 16, "temperature": 0, "n_probs": 8, "ignore_eos": True,
        "cache_prompt": False,
    })
    answer = json.loads(answer) if isinstance(answer, str) else answer
    print("ANSWER", json.dumps(answer["choices"][0]["logprobs"]["content"]))
"""


def answers(model: Path, prompts: list[list[int]]) -> list[list[dict[str, Any]]]:
    """llama.cpp's tokens after each prompt, in a process of its own: it aborts where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(model)],
        input=json.dumps(prompts), text=True, capture_output=True, check=False, timeout=300,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(lines) == len(prompts), done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line.removeprefix("ANSWER ")) for line in lines]


@pytest.mark.parametrize(
    "argv",
    [
        ["--variant", "glm5"],
        ["--variant", "glm5.2", "--split", "3"],
        ["--variant", "glm5.2", "--shared", "repeat"],
        ["--variant", "glm5", "--mtp"],
    ],
    ids=" ".join,
)
def test_log_probabilities_agree(tmp_path: Path, argv: list[str]) -> None:
    assert main([str(tmp_path), "--dims", "micro", "--quant", "f32", *argv]) == 0
    goldens = read_golden(tmp_path)
    model = sorted(tmp_path.glob("*.gguf"))[0]
    for golden, steps in zip(
        goldens, answers(model, [list(each.prompt) for each in goldens]), strict=True
    ):
        assert [step["id"] for step in steps] == list(golden.tokens)
        for step, top in zip(steps, golden.top, strict=True):
            theirs = {each["id"]: each["logprob"] for each in step["top_logprobs"]}
            assert [n for n, _ in top][:3] == list(theirs)[:3]
            assert all(abs(theirs[n] - p) < 1e-3 for n, p in top if n in theirs)
