"""The throwaway hosts themselves: if these fail, no other end-to-end test means anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.demo.rootfs import BedUnavailableError, require_prerequisites


def ssh(bed: Bed, name: str, command: str, *, user: str = "root", input: str = "") -> str:
    """Over real SSH, with the host key checked; '' where it did not work."""
    argv = [*bed.ssh(name, user), command]
    argv[1:1] = ["-o", "ConnectTimeout=2"]
    done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def test_hosts_are_separate_machines(bed: Bed) -> None:
    for name, host in bed.hosts.items():
        assert ssh(bed, name, "hostname") == name
        assert host.exec(["ps", "-p", "1", "-o", "comm="]).stdout.strip() == "systemd"
        assert host.exec(["systemctl", "is-system-running"]).stdout.strip() == "running"
    machines = {host.exec(["cat", "/etc/machine-id"]).stdout for host in bed.hosts.values()}
    assert len(machines) == len(bed.hosts)


def test_each_host_sees_its_own_processes_and_ports_only(bed: Bed) -> None:
    first, second = bed.hosts["node1"], bed.hosts["node2"]
    first.exec(["systemd-run", "--unit=bed-test", "sleep", "600"])
    try:
        assert first.exec(["pgrep", "-x", "sleep"]).stdout
        assert second.exec(["pgrep", "-x", "sleep"], check=False).returncode == 1
        assert second.exec(["systemctl", "is-active", "bed-test"], check=False).returncode != 0
    finally:
        first.exec(["systemctl", "stop", "bed-test"])


def test_a_reboot_keeps_the_disk_and_starts_a_new_boot(bed: Bed) -> None:
    host = bed.hosts["node3"]
    host.exec(["touch", "/root/stays", "/run/goes"])
    before = host.exec(["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    host.reboot()
    assert host.exec(["cat", "/proc/sys/kernel/random/boot_id"]).stdout != before
    assert host.exec(["ls", "/root/stays", "/run/goes"], check=False).stdout.split() == [
        "/root/stays"
    ]


def test_a_cut_host_answers_again_after_restore(bed: Bed) -> None:
    host = bed.hosts["node2"]
    host.cut()
    try:
        assert ssh(bed, "node2", "hostname") == ""
        assert ssh(bed, "node1", "hostname") == "node1"
        assert host.exec(["hostname"]).stdout.strip() == "node2"
    finally:
        host.restore()
    assert ssh(bed, "node2", "hostname") == "node2"


@pytest.mark.parametrize("password", ["plain", "p;a 'b$\"%", "ü:colon"])
def test_sudo_with_a_password(bed: Bed, password: str) -> None:
    host = bed.hosts["node1"]
    host.add_user("pat", "password", password)
    sudo = "sudo -k -S -p '' id -u"
    assert ssh(bed, "node1", sudo, user="pat", input=f"{password}\n") == "0"
    assert ssh(bed, "node1", sudo, user="pat", input="wrong\n") == ""


def test_sudo_may_be_refused(bed: Bed) -> None:
    host = bed.hosts["node1"]
    host.add_user("guest", None)
    assert ssh(bed, "node1", "id -un", user="guest") == "guest"
    assert ssh(bed, "node1", "sudo -n id -u", user="guest") == ""


def test_a_small_disk_fills_up(bed: Bed) -> None:
    host = bed.hosts["node1"]
    host.tmpfs("/mnt/small", "1m")
    try:
        fill = host.exec(["dd", "if=/dev/zero", "of=/mnt/small/x", "bs=1M", "count=2"], check=False)
        assert "No space left" in fill.stderr
    finally:
        host.exec(["umount", "/mnt/small"])


def test_a_reset_host_has_nothing_of_ours(fresh_host: BedHost) -> None:
    from tests.e2e.conftest import reset

    fresh_host.exec(["mkdir", "-p", "/opt/glm5/state"])
    unit = "[Service]\nExecStart=sleep 600\n[Install]\nWantedBy=multi-user.target\n"
    fresh_host.exec(["tee", "/etc/systemd/system/glm5-x.service"], input=unit)
    fresh_host.exec(["systemctl", "enable", "--now", "glm5-x.service"])
    reset(fresh_host)
    assert not (fresh_host.root / "opt/glm5").exists()
    left = fresh_host.exec(["systemctl", "list-units", "--all", "--no-legend", "glm5-*"]).stdout
    assert left.strip() == ""
    assert fresh_host.exec(["systemctl", "cat", "glm5-x.service"], check=False).returncode != 0


def test_the_inventory_text_names_every_host(bed: Bed) -> None:
    inventory = yaml.safe_load(bed.inventory_text(profile="p", user="deploy"))
    assert {name: host["connection"]["address"] for name, host in inventory["hosts"].items()} == {
        name: host.address for name, host in bed.hosts.items()
    }
    assert inventory["defaults"]["profile"] == "p"
    assert all(host["connection"]["user"] == "deploy" for host in inventory["hosts"].values())


def test_a_bed_is_found_again_by_its_folder_and_leaves_nothing(bed: Bed, tmp_path: Path) -> None:
    first = Bed(tmp_path / "other")
    first.up(["solo"])
    found = Bed(tmp_path / "other")
    assert found.running()
    assert found.network.number != bed.network.number
    number = found.network
    found.down()
    assert not Path("/run/netns", number.namespace(0)).exists()
    assert not any(group.exists() for group in found.cgroups())
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not first.running()
    assert bed.running()


def test_up_clears_what_a_killed_run_left(bed: Bed, tmp_path: Path) -> None:
    assert bed.running()
    Bed(tmp_path / "again").up(["solo"])
    second = Bed(tmp_path / "again")
    try:
        second.up(["solo", "duo"])
        assert set(second.hosts) == {"solo", "duo"}
        assert second.running()
    finally:
        second.down()


def test_bare_hosts_lack_what_a_deployment_needs(bare_bed: Bed) -> None:
    host = bare_bed.hosts["bare1"]
    for program in ("python3", "gcc", "rsync"):
        assert host.exec(["sh", "-c", "command -v $1", "sh", program], check=False).stdout == ""


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: path and "nspawn" not in name)
    with pytest.raises(BedUnavailableError) as caught:
        require_prerequisites()
    assert "systemd-container" in caught.value.message
    assert "apt-get install" in (caught.value.hint or "")


def test_a_removed_user_leaves_no_failed_unit(bed: Bed) -> None:
    host = bed.hosts["node1"]
    host.add_user("passing")
    assert ssh(bed, "node1", "whoami", user="passing") == "passing"
    host.remove_user("passing")
    assert host.exec(["systemctl", "--failed", "--no-legend"]).stdout == ""
