"""What the benchmarks share: medians, spreads, the machine, and results as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median, extremes and every run, in seconds."""
    return {
        "median": round(statistics.median(seconds), 3),
        "min": round(min(seconds), 3),
        "max": round(max(seconds), 3),
        "runs": [round(value, 3) for value in seconds],
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and load: what a figure depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of this interpreter's packages."""
    return {name: importlib.metadata.version(name) for name in packages}


def command() -> str:
    """What was typed, in the checkout."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def commit() -> str:
    """Of the sources that are measured; `GLM5_COMMIT` names it where they lie without history."""
    if given := os.environ.get("GLM5_COMMIT"):
        return given
    asked = ["git", "-C", str(RESULTS), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def save(name: str, document: dict[str, Any]) -> Path:
    """Write ``results/NAME.json`` with when and how it was made."""
    RESULTS.mkdir(exist_ok=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "command": command(),
        "load_after": [round(value, 2) for value in os.getloadavg()],
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**about, **document}, indent=1) + "\n")
    return path
