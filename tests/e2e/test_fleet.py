"""Several hosts, and hosts that are not as they should be."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, UNIT, Deployment, current, exists, set_faults, show

ALL = ("node1", "node2", "node3")


@pytest.fixture
def deployment(tmp_path: Path, bed: Bed, fresh_hosts: list[BedHost]) -> Deployment:
    for host in fresh_hosts:
        set_faults(host)
    made = Deployment(tmp_path / "site", bed, ALL)
    made.defaults = {"connection": {"connect_timeout": 2, "connect_attempts": 1}}
    return made


def up(cli: Cli, deployment: Deployment, *words: str, expect: int | None = 0):  # noqa: ANN201
    return cli(
        "up", "-i", deployment.write(), "--json", *words,
        env=deployment.environment, expect=expect,
    )  # fmt: skip


def statuses(result) -> dict[str, str]:  # noqa: ANN001
    return {name: outcome["status"] for name, outcome in result.json["hosts"].items()}


def test_one_host_of_three_is_cut_off_and_retried(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    bed.hosts["node2"].cut()
    first = up(cli, deployment, expect=3)
    assert statuses(first) == {"node1": "changed", "node2": "unreachable", "node3": "changed"}
    bed.hosts["node2"].restore()
    again = up(cli, deployment, "--retry-failed")
    assert statuses(again) == {"node2": "changed"}
    assert set(statuses(up(cli, deployment)).values()) == {"unchanged"}


def test_rolling_stops_at_the_first_failure(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    bed.hosts["node2"].exec(["systemd-run", "--unit=squatter", "python3", "-m", "http.server",
                             "--bind", "127.0.0.1", "8000"])  # fmt: skip
    try:
        wait_for_port(bed.hosts["node2"])
        rolled = up(cli, deployment, "--serial", "1", expect=1)
        assert statuses(rolled) == {"node1": "changed", "node2": "failed", "node3": "skipped"}
        message = rolled.json["hosts"]["node2"]["error"]["message"]
        assert "8000 is taken by python3 (pid " in message
        assert not exists(bed.hosts["node2"], ROOT)
        more = up(cli, deployment, "--serial", "34%", "--max-failures", "1", expect=1)
        assert statuses(more) == {"node1": "unchanged", "node2": "failed", "node3": "changed"}
    finally:
        bed.hosts["node2"].exec(["systemctl", "stop", "squatter"])


def wait_for_port(host: BedHost) -> None:
    until = time.monotonic() + 20
    while ":8000" not in host.exec(["ss", "-Hltn"]).stdout:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_two_runs_at_once(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    deployment.names = ("node1",)
    deployment.profile["serve"]["args"]["load-seconds"] = 8
    inventory = deployment.write()
    results = []

    def one() -> None:
        results.append(cli("up", "-i", inventory, "--json", env=deployment.environment))

    first = threading.Thread(target=one)
    first.start()
    until = time.monotonic() + 30
    while not exists(bed.hosts["node1"], f"{ROOT}/state/lock"):
        assert time.monotonic() < until
        time.sleep(0.05)
    second = up(cli, deployment, expect=1)
    first.join()
    message = second.json["hosts"]["node1"]["error"]["message"]
    assert "locked by root@" in message
    assert "up" in message
    assert "unlock" in second.json["hosts"]["node1"]["error"]["hint"]
    assert results[0].returncode == 0


def test_unlock_names_the_holder_and_a_foreign_lease_expires(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    deployment.names = ("node1",)
    host = bed.hosts["node1"]
    record = json.dumps({"user": "eve", "machine": "elsewhere", "pid": 7, "since": time.time(),
                         "reason": "up"})  # fmt: skip
    host.exec(["mkdir", "-p", f"{ROOT}/state"])

    def hold(seconds: int) -> None:
        text = f"deadbeef {int(time.time()) + seconds}\n{record}\n"
        host.exec(["tee", f"{ROOT}/state/lock"], input=text)

    hold(300)
    refused = up(cli, deployment, expect=1)
    assert "eve@elsewhere" in refused.json["hosts"]["node1"]["error"]["message"]
    freed = cli("unlock", "-i", deployment.write(), env=deployment.environment, expect=0)
    assert "eve@elsewhere" in freed.stdout
    assert not exists(host, f"{ROOT}/state/lock")
    hold(-1)
    taken = up(cli, deployment, "-v")
    assert "took over the lock of eve@elsewhere" in taken.stderr


def test_a_full_disk_is_refused_and_left_as_it_was(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    deployment.names = ("node1",)
    bed.hosts["node1"].tmpfs(ROOT, "16m")
    deployment.profile["needs"]["disk_gib"] = 1
    refused = up(cli, deployment, expect=1)
    message = refused.json["hosts"]["node1"]["error"]["message"]
    assert "GiB free on /opt/glm5" in message
    assert bed.hosts["node1"].exec(["ls", ROOT]).stdout == ""
    deployment.profile["needs"]["disk_gib"] = 0
    full = up(cli, deployment, expect=1).json["hosts"]["node1"]
    assert "No space left on device" in full["error"]["message"]
    assert full["status"] == "failed"
    assert current(bed.hosts["node1"]) is None
    assert not exists(bed.hosts["node1"], f"{ROOT}/state/lock")
    bed.hosts["node1"].exec(["mount", "-o", "remount,size=400m", ROOT])
    assert statuses(up(cli, deployment)) == {"node1": "changed"}


def test_a_model_file_damaged_under_the_same_size_and_time_is_mended(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    deployment.names = ("node1",)
    up(cli, deployment)
    damage = (
        'touch -r "$1" /tmp/stamp; printf X | dd of="$1" bs=1 seek=9 conv=notrunc status=none; '
        'touch -r /tmp/stamp "$1"'
    )
    path = f"{ROOT}/models/tiny/model.safetensors"
    host = bed.hosts["node1"]
    host.exec(["sh", "-c", damage, "damage", path])
    mended = up(cli, deployment).json["hosts"]["node1"]
    assert [(c["stage"], c["action"]) for c in mended["changes"]] == [("model", "sync")]
    local = (deployment.model / "model.safetensors").read_bytes()
    there = host.exec(["sha256sum", path]).stdout.split()[0]
    assert there == hashlib.sha256(local).hexdigest()


def test_a_damaged_model_without_a_source_is_refused(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    """Files that were put on the host by hand: a manifest is made once, later damage is seen."""
    deployment.names = ("node1",)
    host = bed.hosts["node1"]
    host.exec(["mkdir", "-p", "/srv/given"])
    host.exec(["tee", "/srv/given/config.json"], input="{}")
    host.exec(["tee", "/srv/given/weights.bin"], input="weights" * 1000)
    deployment.profile["model"] = {"name": "given", "path": "/srv/given"}
    up(cli, deployment)
    assert host.exec(["ls", "/srv/given"]).stdout.split() == ["config.json", "weights.bin"]
    host.exec(["sed", "-i", "s/w/W/", "/srv/given/weights.bin"])
    before = show(host, "InvocationID")
    refused = up(cli, deployment, expect=1).json["hosts"]["node1"]
    assert "contents differ from the manifest: weights.bin" in refused["error"]["message"]
    assert show(host, "InvocationID") == before
    host.exec(["rm", "-rf", "/srv/given"])


@pytest.mark.parametrize("password", ["p;a 'b$\"%", "ünï cödé\\n`x`"])
def test_password_sudo(cli: Cli, deployment: Deployment, bed: Bed, password: str) -> None:
    deployment.names = ("node1",)
    host = bed.hosts["node1"]
    host.add_user("ops", sudo="password", password=password)
    deployment.user = "ops"
    deployment.defaults["become"] = {"password": "${env:OPS_SUDO}"}
    environment = {**deployment.environment, "OPS_SUDO": password}
    inventory = deployment.write()
    done = cli("up", "-i", inventory, "--json", env=environment, expect=0)
    assert statuses(done) == {"node1": "changed"}
    assert password not in done.output
    again = cli("up", "-i", inventory, "--json", env=environment, expect=0)
    assert statuses(again) == {"node1": "unchanged"}
    wrong = cli("up", "-i", inventory, env={**environment, "OPS_SUDO": "wrong"}, expect=1)
    assert "sudo" in wrong.output
    host.remove_user("ops")


def test_operators_take_turns_under_their_own_logins(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    deployment.names = ("node1",)
    host = bed.hosts["node1"]
    for number, user in enumerate(("ann", "ben", "ann")):
        host.add_user(user)
        deployment.user = user
        deployment.lock(f"1.{number}")
        (deployment.model / "model.safetensors").write_bytes(b"%d" % number * 5000)
        assert statuses(up(cli, deployment)) == {"node1": "changed"}
        assert statuses(up(cli, deployment)) == {"node1": "unchanged"}
    for user in ("ann", "ben"):
        host.remove_user(user)


def test_awkward_values_arrive_as_they_are(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    """Quotes, %, $, spaces and backslashes in arguments, environment, folder and user names."""
    deployment.names = ("node1",)
    host = bed.hosts["node1"]
    awkward = "a b  'c' \"d\" %h %% $HOME ${HOME} \\ ;&|<>*?[]#~` ünï \\n"
    root = "/srv/root with spaces, 100%h and $HOME; ünï"
    deployment.defaults["root"] = root
    deployment.profile["unit"] = {"user": "odd-user_1"}
    deployment.profile["environment"] = {"AWKWARD": awkward}
    deployment.profile["serve"]["args"]["awkward"] = awkward
    deployment.profile["model"]["served_name"] = "my model: 100% $x 'y'"
    try:
        assert statuses(up(cli, deployment)) == {"node1": "changed"}
        pid = show(host, "MainPID")["MainPID"]
        environ = host.exec(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")
        assert f"AWKWARD={awkward}" in environ
        words = host.exec(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")
        assert words[words.index("--awkward") + 1] == awkward
        assert host.exec(["ps", "-o", "user:20=", "-p", pid]).stdout.strip() == "odd-user_1"
        assert statuses(up(cli, deployment)) == {"node1": "unchanged"}
    finally:
        host.exec(["systemctl", "disable", "--now", UNIT], check=False)
        host.exec(["rm", "-rf", root])
