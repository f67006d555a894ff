"""`register()` in processes of their own, through vLLM's own loading of plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KERNEL = Path(__file__).parents[3] / "kernel"
HEAVY = ("torch", "triton", "vllm", "numpy", "transformers", "gguf")

ALONE = f"""
import sys, time
start = time.perf_counter()
from glm5_kernel import register
register()
seconds = time.perf_counter() - start
told = {{"heavy": [name for name in {HEAVY!r} if name in sys.modules], "seconds": seconds}}
"""

IN_VLLM = """
import sys, threading, time
from types import ModuleType
import torch
import vllm
import vllm.plugins
before = set(sys.modules)
start = time.perf_counter()
vllm.plugins.load_general_plugins()
seconds = time.perf_counter() - start
loaded = sorted(set(sys.modules) - before)
from glm5_kernel import plugin
first = plugin.register()
barrier, found = threading.Barrier(4), []
def again():
    barrier.wait()
    found.append(plugin.register() is first)
threads = [threading.Thread(target=again) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
vllm.plugins.plugins_loaded = False
vllm.plugins.load_general_plugins()
from vllm.config.compilation import CompilationConfig
from vllm.v1.attention.backends import registry
told = {
    "seconds": seconds,
    "loaded": loaded,
    "same": found,
    "cuda": torch.cuda.is_initialized(),
    "ops": CompilationConfig._attention_ops.count("glm5_kernel::sparse_attn_indexer"),
    "overrides": {key.name: value for key, value in registry._ATTN_OVERRIDES.items()},
    "sparse": [name for name in sys.modules if "sparse" in name and "vllm" in name],
    "finders": len([f for f in sys.meta_path if type(f).__module__.startswith("glm5_kernel")]),
    "message": first.message,
}
"""

TOGETHER = """
import threading
from glm5_kernel import plugin
barrier, found = threading.Barrier(8), []
def one():
    barrier.wait()
    found.append(id(plugin.register()))
threads = [threading.Thread(target=one) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import sys
hooks = [f._name for f in sys.meta_path if type(f).__module__.startswith("glm5_kernel")]
told = {"results": len(set(found)), "hooks": len(hooks), "different": len(set(hooks))}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The entry point as pip would install it."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "glm5_kernel-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: glm5-kernel\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nglm5_kernel = glm5_kernel:register\n"
    )
    return folder


def told_by(script: str, site: Path, **more: str) -> Any:  # noqa: ANN401
    paths = [str(site), str(KERNEL), os.environ["PYTHONPATH"]]
    environment = os.environ | {"PYTHONPATH": ":".join(paths), "VLLM_PLUGINS": "glm5_kernel"} | more
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport json; print(json.dumps(told))"],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_heavy_is_imported(site: Path) -> None:
    assert told_by(ALONE, site)["heavy"] == []


def test_threads_that_register_together(site: Path) -> None:
    told = told_by(TOGETHER, site)
    assert told["results"] == 1
    assert told["hooks"] == told["different"] >= 4


@pytest.mark.primary
def test_in_a_process_of_vllm(site: Path) -> None:
    told = told_by(IN_VLLM, site)
    assert told["message"].startswith("vLLM ")
    assert [name for name in told["loaded"] if name.partition(".")[0] in HEAVY] == []
    assert told["same"] == [True] * 4
    assert told["cuda"] is False
    assert told["ops"] == 1
    assert told["overrides"] == {"CUSTOM": "glm5_kernel.attention.backend.TritonMLASparseBackend"}
    assert told["sparse"] == []


@pytest.mark.primary
def test_stock_by_setting_takes_nothing(site: Path) -> None:
    told = told_by(IN_VLLM, site, GLM5_ATTENTION="stock", GLM5_INDEXER="stock")
    assert told["ops"] == 0
    assert list(told["overrides"]) == ["CUSTOM"]


def test_graphs_are_split_at_our_op() -> None:
    from vllm.config.compilation import CompilationConfig

    operations = CompilationConfig._attention_ops
    assert operations.count("glm5_kernel::sparse_attn_indexer") == 1
    assert "vllm::sparse_attn_indexer" in operations
