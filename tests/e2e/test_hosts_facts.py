"""Facts of real hosts, all in one round trip."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from glm5_deploy.demo.bed import Bed
from glm5_deploy.hosts.command import command, script
from glm5_deploy.hosts.facts import Fact, gather
from glm5_deploy.hosts.facts.system import Os, SystemFacts, system_fact_list, system_facts
from glm5_deploy.hosts.facts.unit import unit_fact
from glm5_deploy.hosts.ssh import SshHost

from tests.e2e.hosts_support import NASTY, opened


@pytest.fixture(scope="module")
def host(bed: Bed) -> Iterator[SshHost]:
    with opened(bed) as host:
        yield host


def gather_system(host: SshHost) -> SystemFacts:
    return system_facts(gather(host, system_fact_list()))


def test_the_whole_system_in_one_round_trip(host: SshHost) -> None:
    before = host.round_trips
    facts = gather_system(host)
    assert host.round_trips - before == 1
    assert facts.os == Os("debian", "12", "Debian GNU/Linux 12 (bookworm)")
    assert facts.machine.user == "root"
    assert facts.machine.libc == (2, 36)
    assert abs(facts.machine.clock - time.time()) < 60
    assert facts.machine.memory_total > 2**20
    assert facts.systemd.version == 252
    assert facts.systemd.state in ("running", "degraded")
    assert [python.minor for python in facts.pythons] == ["3.11"]
    assert facts.pythons[0].path == PurePosixPath("/usr/bin/python3")
    assert facts.tools["rsync"] == PurePosixPath("/usr/bin/rsync")
    assert "dnf" not in facts.tools
    assert "libc.so.6" in facts.libraries
    assert facts.gpus.gpus == ()
    assert facts.gpus.problem is None
    disk = facts.disk_for(PurePosixPath("/opt/glm5/models"))
    assert disk is not None
    assert disk.mount == PurePosixPath("/")
    assert disk.inodes > disk.inodes_available > 0
    assert disk.available > 0
    held = facts.listener(22)
    assert held is not None
    assert (held.process, held.pid is not None) == ("sshd", True)
    assert facts.listener(9) is None


def test_a_bare_host_without_python(bare_bed: Bed) -> None:
    with opened(bare_bed, "bare1") as host:
        facts = gather_system(host)
    assert facts.pythons == ()
    assert "rsync" not in facts.tools
    assert "cc" not in facts.tools
    assert facts.systemd.state == "running"
    assert facts.listener(22) is not None


@pytest.mark.parametrize(
    ("user", "sudo", "password", "state", "trips"),
    [
        ("root", None, None, "root", 1),
        ("hosts-facts", "nopasswd", None, "nopasswd", 1),
        ("hosts-facts", "password", NASTY, "password", 1),
        ("hosts-facts", "password", None, "refused", 2),
        ("hosts-facts", None, "wrong", "refused", 2),
    ],
)
def test_the_state_of_sudo_is_a_fact(
    bed: Bed, user: str, sudo: str | None, password: str | None, state: str, trips: int
) -> None:
    node = bed.hosts["node1"]
    if user != "root":
        node.add_user(user, sudo, NASTY)  # type: ignore[arg-type]
    try:
        with opened(bed, user=user, password=password) as host:
            facts = gather_system(host)
            assert facts.sudo == state
            assert facts.machine.user == user
            assert host.round_trips == trips
    finally:
        if user != "root":
            node.remove_user(user)


def test_a_hanging_fact_hangs_nothing_else(host: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm5_deploy.hosts.facts.fact.FACT_LIMIT", 1)
    facts = [
        Fact("hangs", command("sleep", "641"), lambda output: output.returncode),
        Fact("fails", script("echo x; echo y >&2; exit 3"), lambda output: output),
        Fact("garbage", script(r"printf 'a\0\377\n\nb'"), lambda output: output.stdout),
        Fact("many", script("seq 100000"), lambda output: len(output.stdout.split())),
    ]
    values = gather(host, facts)
    assert values["hangs"] == 124
    assert (values["fails"].returncode, values["fails"].stdout) == (3, "x\n")
    assert values["fails"].stderr == "y\n"
    assert values["garbage"] == "a\0\ufffd\n\nb"
    assert values["many"] == 100_000
    assert host.run(script("ls /dev/shm")).stdout == ""


def test_units(host: SshHost) -> None:
    running, missing = gather(
        host, [unit_fact("ssh.service"), unit_fact("no-such.service")]
    ).values()
    assert running.active
    assert running.main_pid > 1
    assert missing.load_state == "not-found"
