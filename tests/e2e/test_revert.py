"""A release that does not prove itself is taken back: by us, or by the host alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import (
    ROOT,
    UNIT,
    Deployment,
    current,
    eventually,
    exists,
    set_faults,
    show,
)

TIMER = "glm5-fake-confirm.timer"


@pytest.fixture
def deployment(tmp_path: Path, bed: Bed, fresh_host: BedHost) -> Deployment:
    set_faults(fresh_host)
    return Deployment(tmp_path / "site", bed)


def up(cli: Cli, deployment: Deployment, *words: str, expect: int | None = 0):  # noqa: ANN201
    return cli(
        "up", "-i", deployment.write(), "--json", *words,
        env=deployment.environment, expect=expect,
    )  # fmt: skip


def outcome(result) -> dict:  # noqa: ANN001
    return result.json["hosts"]["node1"]


def fault(deployment: Deployment, *names: str) -> None:
    deployment.profile["serve"]["args"]["fault"] = ",".join(names)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crash", "the server ended with status 1"),
        ("exit-0", "status 0"),
        ("never-listens", "not healthy within"),
        ("unhealthy", "not healthy within"),
        ("dead-engine", "not healthy within"),
        ("generation-fails", "not healthy within"),
        ("wrong-tokens", "expected answer 1"),
        ("non-deterministic", "greedy twice"),
        ("nan", "log-probabilities"),
        ("no-auth", "key refused"),
    ],
)
def test_a_bad_release_is_reverted_to_the_good_one(
    cli: Cli, deployment: Deployment, fresh_host: BedHost, name: str, said: str
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    fault(deployment, name)
    deployment.profile["limits"]["load"] = 8
    deployment.profile["serve"]["args"]["crash-after"] = 0
    failed = up(cli, deployment, expect=4)
    assert outcome(failed)["status"] == "reverted"
    assert said in outcome(failed)["error"]["message"]
    assert "it answers again" in outcome(failed)["error"]["message"]
    assert current(fresh_host) == good
    assert show(fresh_host, "ActiveState")["ActiveState"] == "active"
    assert not exists(fresh_host, f"{ROOT}/state/pending.json")
    assert not exists(fresh_host, f"{ROOT}/state/lock")


def test_a_bad_first_release_is_stopped_and_disabled(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    fault(deployment, "oom")
    failed = outcome(up(cli, deployment, expect=4))
    assert failed["status"] == "reverted"
    assert "out of memory" in failed["error"]["message"]
    assert failed["error"]["hint"]
    assert current(fresh_host) is None
    state = show(fresh_host, "ActiveState", "UnitFileState")
    assert state == {"ActiveState": "inactive", "UnitFileState": "disabled"}
    del deployment.profile["serve"]["args"]["fault"]
    assert outcome(up(cli, deployment))["status"] == "changed"


def test_a_server_that_was_down_is_down_after_a_bad_release(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    cli("down", "-i", deployment.write(), "--yes", env=deployment.environment, expect=0)
    fault(deployment, "oom")
    failed = outcome(up(cli, deployment, expect=4))
    assert failed["status"] == "reverted"
    assert f"back on {good}: stopped and disabled, as before" in failed["error"]["message"]
    assert current(fresh_host) == good
    state = show(fresh_host, "ActiveState", "UnitFileState")
    assert state == {"ActiveState": "inactive", "UnitFileState": "disabled"}
    del deployment.profile["serve"]["args"]["fault"]
    assert outcome(up(cli, deployment))["status"] == "changed"


def killed_while_waiting(cli: Cli, deployment: Deployment, host: BedHost) -> None:
    """Start an `up` whose server never listens, and kill -9 it once the switch is pending."""
    fault(deployment, "never-listens")
    process = cli.start("up", "-i", deployment.write(), env=deployment.environment)
    eventually(lambda: switched(host))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def switched(host: BedHost) -> bool:
    """Whether a switch is pending and its server was started."""
    pending = exists(host, f"{ROOT}/state/pending.json")
    return pending and show(host, "ActiveState")["ActiveState"] == "active"


def test_the_host_reverts_by_itself_when_the_operator_is_gone(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    deployment.profile["limits"] |= {"load": 5, "smoke": 5}
    killed_while_waiting(cli, deployment, fresh_host)
    assert current(fresh_host) != good
    shorten_deadline(fresh_host, 3)
    eventually(lambda: current(fresh_host) == good)
    eventually(lambda: show(fresh_host, "ActiveState")["ActiveState"] == "active")
    eventually(lambda: exists(fresh_host, f"{ROOT}/state/reverted.json"))
    reverted = json.loads(fresh_host.exec(["cat", f"{ROOT}/state/reverted.json"]).stdout)
    assert "by the host itself" in reverted["reason"]
    eventually(lambda: show(fresh_host, "ActiveState", unit=TIMER)["ActiveState"] == "inactive")


def test_the_host_reverts_after_a_reboot(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    killed_while_waiting(cli, deployment, fresh_host)
    shorten_deadline(fresh_host, 0)
    fresh_host.exec(["systemctl", "stop", TIMER])
    assert current(fresh_host) != good
    fresh_host.reboot()
    eventually(lambda: current(fresh_host) == good)
    eventually(lambda: show(fresh_host, "ActiveState")["ActiveState"] == "active")


def shorten_deadline(host: BedHost, seconds: float) -> None:
    """Bring the moment nearer at which the host gives up; the rest of the note stays."""
    edit = (
        "import json,sys,time; p=sys.argv[1]; d=json.load(open(p)); "
        "d['deadline']=time.time()+float(sys.argv[2]); "
        "d['uptime']=time.clock_gettime(time.CLOCK_BOOTTIME)+float(sys.argv[2]); "
        "json.dump(d,open(p,'w'))"
    )
    host.exec(["python3", "-c", edit, f"{ROOT}/state/pending.json", str(seconds)])


def test_an_interrupted_switch_is_taken_up_again(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    """kill -9 after the switch; the same release then proves itself in the next run."""
    deployment.profile["serve"]["args"]["load-seconds"] = 6
    process = cli.start("up", "-i", deployment.write(), env=deployment.environment)
    eventually(lambda: switched(fresh_host))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    started = show(fresh_host, "InvocationID")["InvocationID"]
    again = up(cli, deployment)
    changes = [(c["stage"], c["action"]) for c in outcome(again)["changes"]]
    assert changes == [("service", "confirm")]
    assert show(fresh_host, "InvocationID")["InvocationID"] == started
    assert not exists(fresh_host, f"{ROOT}/state/pending.json")


def test_ctrl_c_while_waiting_takes_the_switch_back(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    fault(deployment, "never-listens")
    process = cli.start("up", "-i", deployment.write(), "--json", env=deployment.environment)
    eventually(lambda: exists(fresh_host, f"{ROOT}/state/pending.json"))
    os.killpg(process.pid, signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(stdout)["hosts"]["node1"]["status"] == "interrupted"
    assert current(fresh_host) == good
    assert not exists(fresh_host, f"{ROOT}/state/pending.json")
    assert not exists(fresh_host, f"{ROOT}/state/lock")
    assert show(fresh_host, "ActiveState", unit=UNIT)["ActiveState"] == "active"


def test_another_name_and_port_leave_one_server_and_a_way_back(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    """The earlier unit stops before the new one starts, and comes back with a revert."""
    up(cli, deployment)
    good = current(fresh_host)
    deployment.profile["service"] = "renamed"
    deployment.profile["serve"]["port"] = 8001
    fault(deployment, "unhealthy")
    deployment.profile["limits"]["load"] = 5
    failed = outcome(up(cli, deployment, expect=4))
    assert f"back on {good}: it answers again" in failed["error"]["message"]
    assert servers(fresh_host) == ["glm5-fake.service"]
    fault(deployment)
    deployment.profile["limits"]["load"] = 20
    assert outcome(up(cli, deployment))["status"] == "changed"
    assert servers(fresh_host) == ["glm5-renamed.service"]
    cli("rollback", "-i", deployment.write(), env=deployment.environment, expect=0)
    assert servers(fresh_host) == ["glm5-fake.service"]
    assert show(fresh_host, "UnitFileState", unit=TIMER)["UnitFileState"] == "enabled"


def servers(host: BedHost) -> list[str]:
    """Services of ours that run."""
    listed = host.exec(
        ["systemctl", "list-units", "--plain", "--no-legend", "--state=active", "glm5-*.service"]
    )
    return [line.split()[0] for line in listed.stdout.splitlines()]


def test_a_server_that_was_restarted_once_is_well(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    deployment.profile["unit"] = {"restart_seconds": 0}
    up(cli, deployment)
    fresh_host.exec(["systemctl", "kill", "--signal=KILL", UNIT])
    eventually(lambda: show(fresh_host, "NRestarts", "ActiveState") == {
        "NRestarts": "1", "ActiveState": "active",
    })  # fmt: skip
    again = outcome(up(cli, deployment, "--smoke"))
    assert again["status"] == "unchanged"
    assert "chat" in {check["name"] for check in again["checks"]}
