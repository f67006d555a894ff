"""Preflight of GPUs, each case a file in gpus/: a recording, a profile, and the rows.

The facts' own scripts run here against the stand-in for nvidia-smi; what they read of the kernel
comes from the recording.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.hosts.facts import gpu, gpu_host
from glm5_deploy.hosts.facts.fact import FactOutput
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.preflight import preflight

from tests.unit.stages.situation import NOW, bare, desired, system
from tests.unit.stages.situation import unit as unit_state

TESTS = Path(__file__).parents[2]
RECORDINGS = TESTS / "fakes" / "gpus"
CASES = sorted((Path(__file__).parent / "gpus").glob("*.yml"))
ROWS = ("gpus", "driver", "capability", "gpu health", "gpu use", "gpu links", "gpu devices",
        "limits")  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@functools.cache
def program_folder() -> Path:
    """A folder with nvidia-smi in it and nothing else of the kind."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="glm5-smi-"))
    (folder / "nvidia-smi").write_text(
        f'#!/bin/sh\nexec {sys.executable} {TESTS / "fakes" / "nvidia_smi.py"} "$@"\n'
    )
    (folder / "nvidia-smi").chmod(0o755)
    return folder


def run(fact: Any, recording: Path) -> FactOutput:  # noqa: ANN401
    """What a fact's command leaves on a host like the recorded one."""
    environment = {
        **os.environ,
        "PATH": f"{program_folder()}:{os.environ['PATH']}",
        "NVIDIA_SMI_RECORDING": str(recording),
    }
    done = subprocess.run(
        ["sh", "-c", fact.command.shell()],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    return FactOutput(done.returncode, done.stdout, done.stderr)


@functools.cache
def facts(name: str) -> tuple[gpu.GpuFacts, gpu_host.GpuHost]:
    recording = RECORDINGS / f"{name}.json"
    said = json.loads(recording.read_text())
    listed = {fact.name: fact for fact in gpu_host.gpu_host_fact_list("glm5")}
    processes = run(listed["gpu_processes"], recording).stdout
    for pid, unit in said.get("units", {}).items():
        lines = processes.splitlines()
        processes = "\n".join(
            f"{unit}|{line.partition('|')[2]}" if f" {pid}," in line else line for line in lines
        )
    links = run(listed["gpu_links"], recording).stdout
    links = links.partition("--- iommu\n")[0] + "--- iommu\n" + "\n".join(said["iommu"])
    nodes = "\n".join([*said["majors"], "--- nodes", *said["nodes"], "--- groups", ""])
    values = {
        "gpu_processes": gpu_host.parse_processes(FactOutput(0, processes, "")),
        "gpu_links": gpu_host.parse_links(FactOutput(0, links, "")),
        "gpu_kernel_log": gpu_host.parse_kernel_log(FactOutput(0, "\n".join(said["kernel"]), "")),
        "gpu_devices": gpu_host.parse_devices(FactOutput(0, nodes, "")),
        "gpu_limits": gpu_host.parse_limits(FactOutput(0, "\n".join(said["limits"]), "")),
    }
    return gpu.parse_gpus(run(gpu.GPU_FACT, recording)), gpu_host.gpu_host(values)


def observed(name: str) -> Observed:
    found, around = facts(name)
    return replace(bare(), system=system(gpus=found), gpu_host=around)


def examined(case: dict[str, Any], folder: Path) -> dict[str, Check]:
    lock = None
    if "lock" in case:
        lock = folder / "lock.txt"
        lock.write_text(case["lock"] + "\n")
    wanted = desired(lock=lock, **case["profile"])
    return {row.name: row for row in preflight(wanted, observed(case["recording"]))}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded_host(path: Path, tmp_path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    rows = {name: row for name, row in examined(case, tmp_path).items() if name in ROWS}
    expected = case["rows"]
    assert {name: row.status for name, row in rows.items()} == {
        name: row if isinstance(row, str) else row[0] for name, row in expected.items()
    }
    for name, row in expected.items():
        for text in [] if isinstance(row, str) else row[1:]:
            assert text in f"{rows[name].detail}\n{rows[name].hint}", rows[name]
    for row in rows.values():
        assert bool(row.hint) is (row.status in {"failed", "warning"})


def test_every_recording_has_a_case() -> None:
    used = {yaml.safe_load(path.read_text())["recording"] for path in CASES}
    assert used == {path.stem for path in RECORDINGS.glob("*.json")}


def test_groups_of_the_user_open_device_nodes() -> None:
    _, around = facts("h100-driver-550")
    member = replace(around.devices, groups=("glm5", "video"))
    host = replace(observed("h100-driver-550"), gpu_host=replace(around, devices=member))
    rows = {row.name: row for row in preflight(desired(gpus={"count": 2}), host)}
    assert rows["gpu devices"].status == "passed"


def test_without_the_sandbox_any_device_number_will_do() -> None:
    found, around = facts("rtx-pro-6000-x8")
    odd = replace(around.devices, majors={195: ("nvidia-next",), 511: ("nvidia-uvm",)})
    host = replace(bare(), system=system(gpus=found), gpu_host=replace(around, devices=odd))
    for hardening, status in ((True, "failed"), (False, "passed")):
        wanted = desired(gpus={"count": 8}, unit={"hardening": hardening})
        rows = {row.name: row for row in preflight(wanted, host)}
        assert rows["gpu devices"].status == status
        assert ("nvidia-next" in rows["gpu devices"].detail) is hardening


@pytest.mark.parametrize("fact", gpu_host.gpu_host_fact_list("glm5"), ids=lambda fact: fact.name)
def test_a_parser_survives_nothing_and_garbage(fact: Any) -> None:  # noqa: ANN401
    """A host may lack the program, or say something that nobody foresaw."""
    texts = (
        "", "\n", "x|y", "a b c d e f g\n1 2 3 4 5 6 7\n", "=\n==\n", "GPU0 GPU1\nGPU0\nGPU1 X\n",
        "|,,,\n", "--- nodes\n/dev/nvidia0 zz 9 g\n--- groups\n", "NVRM: Xid (PCI:): 1, x",
    )  # fmt: skip
    for text in texts:
        for returncode in (0, 1, 45, 124, 127):
            fact.parse(FactOutput(returncode, text, "sh: not found"))


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (79, "7 found, 8 wanted; Xid 79 of 0000:87:00, 5 min ago: the GPU fell off the bus"),
        (31, "7 found, 8 wanted"),  # a program's, whichever GPU it was
    ],
)
def test_why_a_gpu_is_missing_is_told(number: int, told: str) -> None:
    found, around = facts("rtx-pro-6000-x8")
    left = replace(found, gpus=found.gpus[:7])
    xid = gpu_host.Xid("0000:87:00", number, "GPU has fallen off the bus.", NOW - 300)
    around = replace(around, xids=(xid,))
    host = replace(bare(), system=system(gpus=left), gpu_host=around)
    (row,) = [r for r in preflight(desired(gpus={"count": 8}), host) if r.name == "gpus"]
    assert row.status == "failed"
    assert row.detail.startswith(told)


def test_a_log_that_cannot_be_read_is_not_called_clean() -> None:
    found, around = facts("rtx-pro-6000-x8")
    host = replace(bare(), system=system(gpus=found), gpu_host=replace(around, xids=None))
    rows = {row.name: row for row in preflight(desired(gpus={"count": 8}), host)}
    assert rows["gpu health"].status == "passed"
    assert "cannot be read" in rows["gpu health"].detail


@pytest.mark.parametrize(
    ("journal", "dmesg", "status", "numbers"),
    [
        ("1799989200.1 h kernel: NVRM: Xid (PCI:0000:41:00): 79, x\nother", "", 0, [79]),
        ("1799989200.1 h kernel: Linux version 6.8", "", 0, []),
        ("", "[ 12.5] NVRM: Xid (PCI:0000:41:00): 48, y", 0, [48]),
        ("", "", 3, None),
    ],
)
def test_the_kernel_log_by_journal_or_dmesg(
    journal: str, dmesg: str, status: int, numbers: list[int] | None, tmp_path: Path
) -> None:
    for program, text in (("journalctl", journal), ("dmesg", dmesg)):
        (tmp_path / f"{program}.txt").write_text(text)
        (tmp_path / program).write_text(f"#!/bin/sh\ncat {tmp_path}/{program}.txt\n")
        (tmp_path / program).chmod(0o755)
    fact = gpu_host.gpu_host_fact_list("glm5")[2]
    done = subprocess.run(
        ["sh", "-c", fact.command.shell()], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    found = fact.parse(FactOutput(done.returncode, done.stdout, done.stderr))
    assert done.returncode == status
    assert (None if found is None else [xid.number for xid in found]) == numbers


@pytest.mark.parametrize(
    ("serving", "seen", "status"),
    [
        (True, [], "passed"),
        (True, [("?", 85004)], "passed"),
        (True, [("?", None)], "passed"),
        (True, [("?", 85004), ("docker.service", 9000)], "failed"),
        (True, [("?", 85004), ("docker.service", 900)], "warning"),
        (False, [], "failed"),
        (False, [("?", 85004)], "failed"),
    ],
)
def test_in_a_container_our_running_server_cannot_be_seen(
    serving: bool, seen: list[tuple[str, int | None]], status: str
) -> None:
    found, around = facts("h200")
    gpu_used = replace(found.gpus[0], memory_used=(85012 + sum(m or 0 for _, m in seen[1:])) << 20)
    listed = tuple(
        gpu_host.GpuProcess(gpu_used.uuid, 7 + n, None if mib is None else mib << 20, "x", unit)
        for n, (unit, mib) in enumerate(seen)
    )
    active = unit_state(LoadState="loaded", ActiveState="active" if serving else "inactive")
    host = replace(
        bare(), system=system(gpus=replace(found, gpus=(gpu_used,))), unit=active,
        gpu_host=replace(around, processes=listed),
    )  # fmt: skip
    wanted = desired(gpus={"count": 1}, serve={"args": {"gpu-memory-utilization": 0.95}})
    rows = {row.name: row for row in preflight(wanted, host)}
    assert rows["gpu use"].status == status
