"""`smoke`, `logs` and `status` on real hosts; the server is the scriptable one, without `up`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import API_KEY, CONTROL, SERVER, UNIT, Deployment, set_faults

ALL = ("node1", "node2", "node3")
SERVICE = f"""[Service]
Environment=VLLM_API_KEY={API_KEY} PYTHONUNBUFFERED=1
ExecStart=/usr/bin/python3 /run/openai_server.py serve /srv/tiny --load-seconds 0 \\
  --control {CONTROL}
"""
TICKS = """[Service]
ExecStart=/bin/sh -c 'i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.1; done'
"""


@pytest.fixture
def deployment(tmp_path: Path, bed: Bed, fresh_hosts: list[BedHost]) -> Deployment:
    for host in fresh_hosts:
        set_faults(host)
    made = Deployment(tmp_path / "site", bed, ALL)
    made.defaults = {"connection": {"connect_timeout": 2, "connect_attempts": 1}}
    return made


def install(host: BedHost, service: str) -> None:
    host.exec(["tee", f"/run/systemd/system/{UNIT}"], input=service)
    host.exec(["tee", "/run/openai_server.py"], input=SERVER.read_text())
    host.exec(["systemctl", "daemon-reload"])
    host.exec(["systemctl", "start", UNIT])


def wait_until_it_serves(host: BedHost) -> None:
    host.exec(["bash", "-c", "until exec 3<>/dev/tcp/127.0.0.1/8000; do sleep 0.1; done"])


def journal_readers(host: BedHost) -> str:
    return host.exec(["pgrep", "-a", "journalctl"], check=False).stdout


@contextmanager
def following(cli: Cli, deployment: Deployment, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`logs -f`, ended for certain: a reader that hangs fails the test."""
    inventory = deployment.write()
    process = cli.start("logs", "-i", inventory, "-f", *words, env=deployment.environment)
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


def ticks(process: subprocess.Popen[str], count: int) -> list[int]:
    """The next so many ticks."""
    assert process.stdout is not None
    found: list[int] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, "logs -f ended by itself"
        found += [int(number) for number in re.findall(r"tick (\d+)", line)]
    return found


def test_logs_of_three_hosts_with_one_cut_off(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    for name in ALL:
        install(bed.hosts[name], SERVICE)
        wait_until_it_serves(bed.hosts[name])
    bed.hosts["node2"].cut()
    words = ("logs", "-i", deployment.write(), "--grep", "startup complete")
    shown = cli(*words, env=deployment.environment, expect=3)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["node1", "node3"]
    assert "node2 error: cannot reach" in shown.stderr
    document = cli(*words, "--json", env=deployment.environment, expect=3).json
    assert document["ok"] is False
    assert document["hosts"]["node1"]["entries"][0]["message"].endswith("startup complete.")


def test_follow_survives_a_lost_connection_and_ctrl_c_leaves_nothing(
    cli: Cli, deployment: Deployment, bed: Bed
) -> None:
    host = bed.hosts["node1"]
    install(host, TICKS)
    with following(cli, deployment, "--host", "node1", "-n", "1") as process:
        seen = ticks(process, 5)
        assert "--follow" in journal_readers(host)
        host.exec(["pkill", "-KILL", "-f", "sshd: .*@notty"], check=False)
        seen += ticks(process, 30)
        assert seen == list(range(seen[0], seen[0] + len(seen)))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "connection lost, connecting again" in said
    host.exec(
        [
            "sh",
            "-c",
            "for i in 1 2 3 4 5 6 7 8 9 10; do pgrep journalctl || exit 0; sleep 1; done; exit 1",
        ]
    )


def test_explain_names_what_failed(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    install(bed.hosts["node1"], SERVICE.replace("--load-seconds 0", "--fault no-backend"))
    host = bed.hosts["node1"]
    host.exec(["sh", "-c", f"until systemctl is-failed -q {UNIT}; do sleep 0.1; done"])
    words = ("logs", "-i", deployment.write(), "--host", "node1", "--explain")
    shown = cli(*words, env=deployment.environment, expect=0)
    assert shown.stdout.startswith("node1: no-attention-backend")
    document = cli(*words, "--json", env=deployment.environment, expect=0).json
    names = [each["name"] for each in document["hosts"]["node1"]["explanations"]]
    assert names[0] == "no-attention-backend"
    assert set(names[1:]) == {"engine-core-died", "server-exit"}


def test_smoke_of_hosts_that_differ(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    deployment.profile["smoke"]["attention_backend"] = "TRITON_MLA_SPARSE"
    for name in ("node1", "node2"):
        install(bed.hosts[name], SERVICE)
        wait_until_it_serves(bed.hosts[name])
    set_faults(bed.hosts["node2"], "nan")
    words = ("smoke", "-i", deployment.write(), "--json", "--junit", "rows.xml")
    result = cli(*words, env=deployment.environment, expect=4)
    hosts = result.json["hosts"]
    failed = {
        name: [check["name"] for check in host["checks"] if check["status"] == "failed"]
        for name, host in hosts.items()
    }
    assert failed == {"node1": [], "node2": ["log-probabilities"], "node3": ["health"]}
    assert API_KEY not in result.output
    suites = ET.parse(cli.home / "rows.xml").getroot()
    assert [suite.attrib["failures"] for suite in suites] == ["0", "1", "1"]


def test_status_of_hosts_that_differ(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    install(bed.hosts["node1"], SERVICE)
    wait_until_it_serves(bed.hosts["node1"])
    bed.hosts["node3"].cut()
    hosts = cli(
        "status", "-i", deployment.write(), "--json", env=deployment.environment, expect=1
    ).json["hosts"]
    assert (hosts["node1"]["ok"], hosts["node1"]["health"]) == (True, 200)
    assert hosts["node1"]["requests_running"] == 0
    assert hosts["node2"]["error"]["message"] == "not deployed: there is no unit"
    assert hosts["node3"]["status"] == "unreachable"


def test_status_watch_prints_one_object_a_line(cli: Cli, deployment: Deployment, bed: Bed) -> None:
    install(bed.hosts["node1"], SERVICE)
    wait_until_it_serves(bed.hosts["node1"])
    words = ("status", "-i", deployment.write(), "--host", "node1", "--watch", "--json")
    process = cli.start(*words, "--interval", "0.5", env=deployment.environment)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        watchdog.cancel()
        process.kill()
    assert [row["host"] for row in seen] == ["node1"] * 3
    assert seen[-1]["ok"] is True
