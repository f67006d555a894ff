"""The walk that a real GPU host gets (tests/gpu/host/walk.py), on a test host like one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, current, set_faults, show
from tests.e2e.gpu_hosts import Site, become, restore
from tests.gpu.host import run
from tests.gpu.host.walk import Walk, WalkError, steps

UNIT = "glm5-glm-5.service"


@pytest.fixture
def walk(
    tmp_path: Path, bed: Bed, fresh_host: BedHost, cli: Cli, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Walk]:  # fmt: skip
    """On eight GPUs of Blackwell, or on a number of H200s."""
    count = getattr(request, "param", 8)
    set_faults(fresh_host)
    become(fresh_host, "rtx-pro-6000-x8" if count == 8 else f"h200-x{count}", UNIT)
    site = Site(tmp_path / "site", bed)
    site.vars["gpus"] = count
    site.override["gpus"] = {"min_memory_gib": 40}
    values = {"HOME": str(cli.home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    for name, value in {**values, **site.deployment.environment}.items():
        monkeypatch.setenv(name, value)
    yield Walk(site.write(), "node1", tmp_path / "out")
    restore(fresh_host, UNIT)


def test_the_whole_walk(walk: Walk, fresh_host: BedHost) -> None:
    done = {each.name: each for each in walk.run(steps())}
    assert set(done) == {step.name for step in steps()}
    assert done["failing"].exit_code == 4
    assert current(fresh_host) == done["up"].release
    assert show(fresh_host, "ActiveState", unit=UNIT)["ActiveState"] == "inactive"
    written = json.loads((walk.out / "results.json").read_text())
    assert [each["name"] for each in written] == list(done)


def test_a_step_that_goes_wrong_ends_it_and_is_explained(walk: Walk, fresh_host: BedHost) -> None:
    set_faults(fresh_host, "oom")
    with pytest.raises(WalkError, match=r"^up: exit 4, 0 is right"):
        walk.run(steps())
    assert [each["name"] for each in json.loads((walk.out / "results.json").read_text())] == [
        "preflight", "up"
    ]  # fmt: skip
    assert "gpu-out-of-memory" in (walk.out / "99-explain.txt").read_text()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run.Session:
    """What a GPU machine has; here its host has another name, and cannot be looked at."""
    monkeypatch.setattr("tests.gpu.host.inventory.NAME", "node1")
    seen = tmp_path / "seen"
    seen.mkdir()
    return run.Session(tmp_path, tmp_path, tmp_path, tmp_path, seen, python=sys.executable)


@pytest.mark.parametrize("walk", [2], indirect=True)
def test_the_short_walk_on_two_gpus(walk: Walk, session: run.Session, fresh_host: BedHost) -> None:
    """By NCCL first, then by vLLM's own all-reduce. The scripted server's memory is another's, and
    its journal says nothing of how it sums."""
    run.walk(session, walk.inventory, 2, explained=False)
    planned, summed = session.problems
    assert planned.startswith("weights: planned ")
    assert summed == "custom all-reduce was to be off, then on; vLLM used []"
    written = json.loads((session.out / "walk" / "results.json").read_text())
    done = {each["name"]: each for each in written}
    assert list(done) == [step.name for step in run.chosen_steps(session, 2)]
    links = next(row for row in done["preflight"]["checks"] if row["name"] == "gpu links")
    assert (links["status"], "NV18" in links["detail"]) == ("passed", True)
    for name, argument in (
        ("up", "--disable-custom-all-reduce"),
        ("custom-all-reduce", "--no-disable-custom-all-reduce"),
    ):
        folder = f"{ROOT}/releases/{done[name]['release']}"
        fresh_host.exec(["grep", "-rqF", "--", f'"{argument}"', folder])
    assert (session.out / "host-security.txt").is_file()


@pytest.mark.parametrize("walk", [2], indirect=True)
def test_what_fails_on_two_gpus_is_tried_without_hardening(
    walk: Walk, session: run.Session, fresh_host: BedHost
) -> None:
    set_faults(fresh_host, "oom")
    run.walk(session, walk.inventory, 2, explained=False)
    failed, told = session.problems
    assert failed.startswith("up: exit 4, 0 is right")
    assert told.startswith("nor does it without hardening: unhardened: exit 4")
    assert show(fresh_host, "ActiveState", unit=UNIT)["ActiveState"] == "inactive"
