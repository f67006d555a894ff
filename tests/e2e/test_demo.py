"""The README's first command, whole: a host, real vLLM, smoke test, logs; then again; then gone."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from glm5_deploy.demo.place import HOST, Place
from glm5_deploy.demo.rootfs import require_prerequisites

from tests.e2e.conftest import Cli, CliResult

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("demo") / "with space")
    yield place
    place.remove()


def demo(cli: Cli, place: Place, *more: str, expect: int = 0) -> CliResult:
    return cli("demo", "--folder", place.folder, *more, expect=expect, timeout=1500)


def test_a_demo_serves_and_proves_a_model_on_real_vllm(cli: Cli, place: Place) -> None:
    require_prerequisites()
    said = demo(cli, place).output
    inventory = place.inventory
    for command in ("up", "smoke", "logs"):
        assert f"glm5-deploy {command} -i" in said
    smoke = cli("smoke", "-i", inventory, "--json", expect=0).json
    checks = {check["name"]: check for check in smoke["hosts"][HOST]["checks"]}
    assert checks["expected answer 1"]["status"] == "passed"
    assert {check["status"] for check in checks.values()} <= {"passed", "skipped"}
    # really vLLM, really on the host
    host = place.bed().hosts[HOST]
    assert "VLLM::" in host.exec(["ps", "-eo", "comm"]).stdout
    logs = cli("logs", "-i", inventory, "-n", "400", expect=0).stdout
    assert "Initializing a V1 LLM engine (v0.32.0)" in logs


def test_a_second_demo_changes_nothing(cli: Cli, place: Place) -> None:
    host = place.bed().hosts[HOST]
    started = "systemctl", "show", "--property=ExecMainStartTimestamp", "glm5-demo-cpu.service"
    before = host.exec(started).stdout
    assert re.search(rf"{HOST} +unchanged +0 changes", demo(cli, place).output)
    assert host.exec(started).stdout == before
    up = cli("up", "-i", place.inventory, "--json", expect=0).json
    assert up["hosts"][HOST]["status"] == "unchanged"


def test_the_api_key_is_shown_nowhere(cli: Cli, place: Place) -> None:
    key = place.api_key.read_text().strip()
    assert stat.S_IMODE(place.api_key.stat().st_mode) == 0o600
    host = place.bed().hosts[HOST]
    said = demo(cli, place).output
    assert key not in said
    assert key not in place.inventory.read_text()
    assert key not in host.exec(["ps", "-eo", "args"]).stdout
    assert key not in host.exec(["journalctl", "--no-pager"]).stdout
    assert key not in json.dumps(cli("status", "-i", place.inventory, "--json").json)


def test_down_leaves_nothing(cli: Cli, place: Place) -> None:
    bed = place.bed()
    demo(cli, place, "--down")
    assert not place.folder.exists()
    assert not bed.folder.exists()
    assert str(bed.folder) not in Path("/proc/self/mountinfo").read_text()
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert bed.network.namespace(0) not in spaces
    demo(cli, place, "--down")
