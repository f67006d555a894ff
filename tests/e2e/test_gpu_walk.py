"""The walk that a real GPU host gets (tests/gpu/host/walk.py), on a test host like one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import current, set_faults, show
from tests.e2e.gpu_hosts import Site, become, restore
from tests.gpu.host.walk import Walk, WalkError, steps

UNIT = "glm5-glm-5.service"


@pytest.fixture
def walk(
    tmp_path: Path, bed: Bed, fresh_host: BedHost, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Walk]:
    set_faults(fresh_host)
    become(fresh_host, "rtx-pro-6000-x8", UNIT)
    site = Site(tmp_path / "site", bed)
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
