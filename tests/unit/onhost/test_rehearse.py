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


@pytest.mark.parametrize("files", [{}, {"vllm/__init__.py": "__version__ = '0.1'"}])
def test_no_vllm_or_one_that_is_laid_out_otherwise_is_not_asked(
    files: dict[str, str], tmp_path: Path
) -> None:
    status, detail = rehearsed(tmp_path, files)
    assert status == "skipped"
    assert "No module named 'vllm" in detail


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
