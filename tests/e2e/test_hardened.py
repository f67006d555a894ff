"""Hosts whose administrators were careful: sshd with few sessions, no forwarding, umask 077."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, Deployment, current, exists, set_faults

CONFIG = "/etc/ssh/sshd_config.d/test.conf"
UMASK = "session optional pam_umask.so umask=0077\n"


@pytest.fixture
def deployment(tmp_path: Path, bed: Bed, fresh_host: BedHost) -> Iterator[Deployment]:
    set_faults(fresh_host)
    pam = fresh_host.exec(["cat", "/etc/pam.d/sshd"]).stdout
    yield Deployment(tmp_path / "site", bed)
    fresh_host.exec(["tee", "/etc/pam.d/sshd"], input=pam)
    sshd(fresh_host, "")


def sshd(host: BedHost, text: str) -> None:
    host.exec(["tee", CONFIG], input=text)
    host.exec(["systemctl", "restart", "ssh"])
    host.wait()


def up(cli: Cli, deployment: Deployment, expect: int = 0):  # noqa: ANN201
    done = cli("up", "-i", deployment.write(), "--json", env=deployment.environment, expect=expect)
    return done.json["hosts"]["node1"]


def test_no_forwarding_is_refused_before_the_switch(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    up(cli, deployment)
    good = current(fresh_host)
    deployment.profile["serve"]["args"]["max-model-len"] = 256
    sshd(fresh_host, "AllowTcpForwarding no\n")
    refused = up(cli, deployment, expect=1)
    assert "forwards no connection" in refused["error"]["message"]
    assert "AllowTcpForwarding" in refused["error"]["hint"]
    assert refused["changes"] == []
    assert current(fresh_host) == good
    assert not exists(fresh_host, f"{ROOT}/state/lock")


def test_one_session_at_a_time_and_a_umask_of_077(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    fresh_host.exec(["tee", "-a", "/etc/pam.d/sshd"], input=UMASK)
    sshd(fresh_host, "MaxSessions 1\n")
    # The lock is renewed meanwhile, beside the wait.
    deployment.profile["serve"]["args"]["load-seconds"] = 17
    deployment.profile["limits"]["load"] = 60
    assert up(cli, deployment)["status"] == "changed"
    modes = fresh_host.exec(["find", f"{ROOT}/models", "-printf", "%m\n"]).stdout.split()
    assert set(modes) == {"755", "644"}


def test_what_the_service_may_not_read_is_told_before_the_switch(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    fresh_host.exec(["install", "-d", "-m", "700", "/srv/closed"])
    fresh_host.exec(["tee", "/srv/closed/config.json", "/srv/closed/new\nline"], input="{}")
    deployment.profile["model"] = {"name": "closed", "path": "/srv/closed"}
    refused = up(cli, deployment, expect=1)
    assert "user glm5 cannot read /srv/closed" in refused["error"]["message"]
    assert current(fresh_host) is None
    fresh_host.exec(["chmod", "755", "/srv/closed"])
    assert up(cli, deployment)["status"] == "changed"
    fresh_host.exec(["rm", "-rf", "/srv/closed"])
