"""The rehearsal where vLLM itself cannot be loaded; tests/vllm has it read real arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from glm5_deploy.onhost import program


def rehearsed(folder: Path, files: dict[str, str]) -> tuple[str, str]:
    """Status and detail, with these modules in place of vLLM."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "rehearse.py").write_bytes(program("rehearse.py"))
    done = subprocess.run(
        [sys.executable, str(folder / "rehearse.py"), "--", "serve", "/models/tiny"],
        capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("REHEARSAL ")]
    answer = json.loads(line.removeprefix("REHEARSAL "))
    return answer["status"], answer["detail"]


def test_what_vllm_has_begun_is_not_waited_for(tmp_path: Path) -> None:
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()"
    status, _ = rehearsed(tmp_path, {"vllm/__init__.py": f"{thread}\n__version__ = '0.1'"})
    assert status == "skipped"


VLLM = {
    "vllm/__init__.py": "__version__ = '0.1'",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
class ServeSubcommand:
    def subparser_init(self, parsers):
        parser = parsers.add_parser("serve")
        parser.add_argument("model_tag")
        return parser

    def validate(self, arguments):
        arguments.tool_parser_plugin = arguments.reasoning_parser_plugin = None
""",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/usage/__init__.py": "",
    "vllm/usage/usage_lib.py": "class UsageContext: OPENAI_API_SERVER = 1",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, arguments):
        assert arguments.model == "/models/tiny"
        return cls()

    def create_engine_config(self, usage_context):
        pass
""",
}
"""As much of it as is asked."""


def test_a_vllm_that_takes_them(tmp_path: Path) -> None:
    assert rehearsed(tmp_path, VLLM) == ("passed", "vLLM 0.1 takes them")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "No module named 'vllm'"),
        ({"vllm/__init__.py": "__version__ = '0.1'"}, "No module named 'vllm.entrypoints'"),
        ({**VLLM, "vllm/utils/argparse_utils.py": ""}, "cannot import name"),
        ({**VLLM, "vllm/usage/usage_lib.py": "class UsageContext: pass"}, "OPENAI_API_SERVER"),
        (
            {**VLLM, "vllm/entrypoints/cli/serve.py": "class ServeSubcommand: pass"},
            "has no attribute 'subparser_init'",
        ),
        (
            {**VLLM, "vllm/engine/arg_utils.py": VLLM["vllm/engine/arg_utils.py"].replace(
                "(self, usage_context)", "(self)"
            )},
            "unexpected keyword argument 'usage_context'",
        ),
    ],
)  # fmt: skip
def test_no_vllm_or_one_that_is_laid_out_otherwise_is_not_asked(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    status, detail = rehearsed(tmp_path, files)
    assert status == "skipped"
    assert detail.startswith("this vLLM cannot be asked: ")
    assert said in detail


@pytest.mark.parametrize("text", ["raise ValueError('no such parser')", "raise SystemExit('no')"])
def test_what_vllm_itself_refuses(text: str, tmp_path: Path) -> None:
    serve = VLLM["vllm/entrypoints/cli/serve.py"].replace("arguments.tool", f"{text}\n        x")
    status, detail = rehearsed(tmp_path, {**VLLM, "vllm/entrypoints/cli/serve.py": serve})
    assert (status, detail[:2]) == ("failed", "no")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("import no_such_dependency", "No module named 'no_such_dependency'"),
    ],
)
def test_one_that_cannot_be_loaded_would_not_serve_either(
    text: str, said: str, tmp_path: Path
) -> None:
    status, detail = rehearsed(tmp_path, {"vllm/__init__.py": text})
    assert status == "failed"
    assert said in detail
