"""What real vLLM says to arguments before a server is stopped for them (onhost/rehearse.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.vllm.cpu.test_load_only import ROOT, installed, run

__all__ = ["installed"]
DEPLOY = ROOT / "deploy" / "glm5_deploy"
MODEL = DEPLOY / "demo" / "model" / "glm5-tiny-q8_0.gguf"
GOOD = ["--max-model-len", "256", "--dtype", "float32", "--port", "1", "--enforce-eager"]
CASES = {
    "good": [],
    "unknown": ["--max-modle-len", "5"],
    "choice": ["--kv-cache-dtype", "fp9"],
    "number": ["--max-num-seqs", "1k"],
    "contradiction": ["--max-num-seqs", "64", "--max-num-batched-tokens", "8"],
    "parser": ["--enable-auto-tool-choice", "--tool-call-parser", "glm999"],
    "half": ["--enable-auto-tool-choice"],
    "long": ["--max-model-len", "9999999"],
}
ASK = """
import json, os, sys
os.environ.pop("VLLM_PLUGINS", None)  # other tests of this run allow none
import rehearse
for words in json.loads(sys.argv[1]):
    print("ANSWER " + json.dumps(rehearse.rehearse(words)))
"""


@pytest.fixture(scope="module")
def answers(installed: Path) -> dict[str, tuple[str, str]]:
    """Status and detail of each case, from one process that has the plugin."""
    (installed / "rehearse.py").write_text((DEPLOY / "onhost" / "rehearse.py").read_text())
    words = [["serve", str(MODEL), *GOOD, *more] for more in CASES.values()]
    missing = ["serve", str(MODEL.with_name("absent.gguf")), *GOOD]
    done = run(installed, "-c", ASK, json.dumps([*words, missing]))
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    found = [tuple(json.loads(line.removeprefix("ANSWER "))) for line in lines]
    assert len(found) == len(CASES) + 1, done.stderr
    return dict(zip([*CASES, "missing"], found, strict=True))


def test_what_it_takes(answers: dict[str, tuple[str, str]]) -> None:
    status, detail = answers["good"]
    assert (status, detail[:10]) == ("passed", "vLLM 0.32."), detail


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("unknown", "--max-modle-len 5 (did you mean --max-model-len?)"),
        ("choice", "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        ("number", "argument --max-num-seqs: invalid int value: '1k'"),
        ("contradiction", "max_num_batched_tokens"),
        ("parser", "invalid tool call parser: glm999"),
        ("half", "--enable-auto-tool-choice requires --tool-call-parser"),
        ("long", "max_model_len"),
        ("missing", "absent.gguf"),
    ],
)
def test_what_it_refuses(case: str, said: str, answers: dict[str, tuple[str, str]]) -> None:
    status, detail = answers[case]
    assert status == "failed", detail
    assert said in detail
