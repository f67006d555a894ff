"""vLLM 0.32.0 for the CPU with the plugin installed: registered, and left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KERNEL = ROOT / "kernel"

LOAD = """
import json, logging, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
load_general_plugins()
from glm5_kernel import plugin
import vllm.model_executor.layers.sparse_attn_indexer
from vllm.model_executor.custom_op import op_registry_oot
from vllm.v1.attention.backends import registry
done = plugin.register()
print(json.dumps({
    "vllm": done.vllm,
    "message": done.message,
    "parts": {part.name: part.state for part in done.parts},
    "oot": sorted(op_registry_oot),
    "overrides": [str(path) for path in registry._ATTN_OVERRIDES.values()],
}))
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin's entry point as pip would install it, beside the checkout's package."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((KERNEL / "pyproject.toml").read_text())["project"]
    info = site / "glm5_kernel-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return site


def run(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": f"{site}:{KERNEL}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    return subprocess.run(
        [sys.executable, *argv],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_it_is_found_and_takes_nothing(installed: Path) -> None:
    done = run(installed, "-c", LOAD)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["vllm"].startswith("0.32.0")
    assert told["message"].startswith(
        f"vLLM {told['vllm']} has no sparse attention: attention and indexer stay out"
    )
    assert "\n" not in told["message"]
    assert (told["parts"]["attention"], told["parts"]["indexer"]) == ("stock", "stock")
    assert told["oot"] == []
    assert told["overrides"] == []


def test_the_server_reads_its_arguments(installed: Path) -> None:
    script = "from vllm.entrypoints.cli.main import main; main()"
    done = run(installed, "-c", script, "serve", "--help=attention-backend")
    assert done.returncode == 0, done.stderr
    assert "--attention-backend" in done.stdout
