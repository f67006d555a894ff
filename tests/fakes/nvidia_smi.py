#!/usr/bin/env python3
"""A stand-in for ``nvidia-smi`` that answers from a recording.

The recording is the JSON file in $NVIDIA_SMI_RECORDING, else recording.json beside this program:

    about           where it is from
    failure         {"said", "returncode"}: all that a broken driver says; else null
    refused         fields of --query-gpu that this driver does not know
    version         what --version prints; null where this driver has no such flag
    every, gpus     fields of --query-gpu that all GPUs share, and those of each
    apps            rows of --query-compute-apps
    topology, p2p   what ``topo -m`` and ``topo -p2p r`` print
    iommu, kernel, majors, nodes, limits   what the host around it says; not asked here
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

UNITS = {"memory.total": "MiB", "memory.used": "MiB", "used_memory": "MiB"}


def main(arguments: list[str]) -> int:
    place = os.environ.get("NVIDIA_SMI_RECORDING") or Path(__file__).with_name("recording.json")
    recording = json.loads(Path(place).read_text())
    if recording.get("failure"):
        print(recording["failure"]["said"])
        return recording["failure"]["returncode"]
    options = dict(word.lstrip("-").partition("=")[::2] for word in arguments)
    if "query-gpu" in options:
        return query_gpus(recording, options)
    if "query-compute-apps" in options:
        return table(recording["apps"], options["query-compute-apps"].split(","), options)
    if arguments[:1] == ["topo"]:
        print("\n".join(recording["topology" if "-m" in arguments else "p2p"]))
        return 0
    if "version" in options:
        return version(recording)
    print(recording["banner"])
    return 0


def query_gpus(recording: dict, options: dict[str, str]) -> int:
    fields = options["query-gpu"].split(",")
    unknown = [field for field in fields if field in recording["refused"]]
    if unknown:
        print(f'Field "{unknown[0]}" is not a valid field to query.\n')
        return 2
    every = recording["every"]
    gpus = [
        {"index": index, "utilization.gpu": 0, **every, **gpu}
        for index, gpu in enumerate(recording["gpus"])
    ]
    return table([[gpu[field] for field in fields] for gpu in gpus], fields, options)


def table(rows: list, fields: list[str], options: dict[str, str]) -> int:
    shape = options["format"].split(",")
    assert "csv" in shape, shape
    assert "nounits" in shape, shape
    if "noheader" not in shape:
        names = (f"{name} [{UNITS[name]}]" if name in UNITS else name for name in fields)
        print(", ".join(names))
    for row in rows:
        print(", ".join(map(str, row)))
    return 0


def version(recording: dict) -> int:
    if recording["version"] is None:
        print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
        return 2
    print("\n".join(recording["version"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
