"""Interrupted at any step, by kill -9, Ctrl-C or a lost connection: the next `up` carries on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, Deployment, current, exists, set_faults, show

STAGES = ("preflight", "system", "venv", "model", "release", "service", "health", "smoke")


@pytest.fixture
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, bed: Bed, fresh_host: BedHost
) -> Deployment:
    set_faults(fresh_host)
    made = Deployment(tmp_path / "site", bed)
    made.defaults = {"connection": {"keepalive": 1, "connect_timeout": 3, "connect_attempts": 2}}
    made.profile["serve"]["args"]["load-seconds"] = 2
    if request.node.callspec.params["stage"] == "model":
        # Enough to transfer that a signal or a cut falls into the middle.
        made.model.joinpath("more.safetensors").write_bytes(os.urandom(64 << 20))
    return made


def start_until(cli: Cli, deployment: Deployment, stage: str) -> subprocess.Popen[str]:
    """Start `up` and come back when it says that it is at a stage."""
    inventory = deployment.write()
    process = cli.start("up", "-v", "-i", inventory, env=deployment.environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.split()[1:2] == [stage]:
            return process
    raise AssertionError(f"it never came to {stage}")


def carries_on(cli: Cli, deployment: Deployment, host: BedHost) -> None:
    """The next `up` ends well, the one after it changes nothing, and no trace is left."""
    again = cli("up", "-i", deployment.write(), "--json", env=deployment.environment, expect=0)
    outcome = again.json["hosts"]["node1"]
    assert outcome["release"] == current(host)
    assert show(host, "ActiveState")["ActiveState"] == "active"
    third = cli("up", "-i", deployment.write(), "--json", env=deployment.environment, expect=0)
    assert third.json["hosts"]["node1"]["changes"] == []
    for leftover in ("state/lock", "state/pending.json"):
        assert not exists(host, f"{ROOT}/{leftover}")


@pytest.mark.parametrize("stage", STAGES)
def test_kill_9(cli: Cli, deployment: Deployment, fresh_host: BedHost, stage: str) -> None:
    process = start_until(cli, deployment, stage)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    carries_on(cli, deployment, fresh_host)


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c(cli: Cli, deployment: Deployment, fresh_host: BedHost, stage: str) -> None:
    process = start_until(cli, deployment, stage)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not exists(fresh_host, f"{ROOT}/state/lock")
    assert not exists(fresh_host, f"{ROOT}/state/pending.json")
    assert current(fresh_host) is None
    carries_on(cli, deployment, fresh_host)


@pytest.mark.parametrize("stage", ["system"])
@pytest.mark.parametrize("group", [None, "glm5"])
def test_a_user_was_made_by_half(
    cli: Cli, deployment: Deployment, fresh_host: BedHost, group: str | None, stage: str
) -> None:
    """As a useradd leaves it that was ended: systemd starts nothing as a user without a group."""
    assert stage
    fresh_host.exec(["useradd", "--system", "--user-group", "glm5"])
    fresh_host.exec(["sed", "-i", "/^glm5:/d", "/etc/group", "/etc/gshadow"])
    if group:
        fresh_host.exec(["groupadd", "--gid", "4711", group])
    carries_on(cli, deployment, fresh_host)


@pytest.mark.parametrize("stage", ["venv", "model", "health"])
def test_the_connection_drops(
    cli: Cli, deployment: Deployment, fresh_host: BedHost, stage: str
) -> None:
    process = start_until(cli, deployment, stage)
    fresh_host.cut()
    time.sleep(8)
    fresh_host.restore()
    process.communicate(timeout=120)
    assert process.returncode in {0, 3}
    carries_on(cli, deployment, fresh_host)
