"""The inventory of a GPU host that has its vLLM already, with the profile glm-5 and a tiny model.

usage: python tests/gpu/host/inventory.py --model FOLDER --gguf FILE --golden FILE --python PYTHON
           [--site FOLDER …] [--gpus N] [--env NAME=VALUE …] [--ssh KEY=VALUE …] > inventory.yml

Only what such a host and such a model lack differs from the profile that ships: backend, KV cache,
indexer and smoke's expectations of them stay. FOLDER is on the host; --golden is here, the file
that `python -m glm5_kernel make-tiny` wrote with the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

NAME = "gpu1"
CONTEXT = 8192
LONG_PROMPT = 3000
"""Beyond the 2,048 tokens that the indexer selects."""

# Random weights answer nothing, and their tokenizer has none of GLM's special tokens.
NO_PARSERS = {"enable-auto-tool-choice": None, "tool-call-parser": None, "reasoning-parser": None}


def inventory(
    model: str,
    gguf: str,
    golden: Path,
    python: str,
    *,
    site: Sequence[str] = (),
    gpus: int = 1,
    environment: Mapping[str, str] | None = None,
    ssh: Mapping[str, str | int] | None = None,
    memory_share: float = 0.3,
) -> dict[str, Any]:
    """The document.

    Args:
        model: folder on the host.
        gguf: its first shard.
        python: interpreter on the host that vLLM runs on; `site` are more folders of packages.
        environment: what this vLLM needs beyond its packages.
        ssh: keys of ``connection``.
        memory_share: of each GPU, so that other tests beside it find room.
    """
    override = {
        "engine": {"lock": None, "base": {"python": python, "site": list(site)}},
        "serve": {"args": {"gpu-memory-utilization": memory_share, **NO_PARSERS}},
        "environment": dict(environment or {}),
        "gpus": {"min_memory_gib": 40},
        "needs": {"compiler": False, "libraries": [], "disk_gib": 1, "memory_gib": 8},
        "limits": {"load": 600, "smoke": 300},
        "smoke": {
            "golden": str(golden.resolve()), "prompt_tokens": LONG_PROMPT, "needle": None,
            "expect": [],
        },
    }  # fmt: skip
    host = {
        "connection": dict(ssh or {}),
        "python": python,
        "packages": {"install": False},
        "profile": "glm-5",
        "vars": {"gguf": gguf, "model_path": model, "gpus": gpus, "max_model_len": CONTEXT},
        "override": override,
    }
    return {"profiles": [], "hosts": {NAME: host}}


def pairs(words: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` words; a value of digits is a number."""
    split = (word.partition("=") for word in words)
    return {name: int(value) if value.isdigit() else value for name, _, value in split}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("model", "gguf", "golden", "python"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("site", "env", "ssh"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    document = inventory(
        given.model, given.gguf, Path(given.golden), given.python, site=given.site,
        gpus=given.gpus, ssh=pairs(given.ssh),
        environment={name: str(value) for name, value in pairs(given.env).items()},
    )  # fmt: skip
    yaml.safe_dump(document, sys.stdout, sort_keys=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
