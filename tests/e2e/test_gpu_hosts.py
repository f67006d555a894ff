"""GPU hosts whose nvidia-smi answers from recordings: preflight, unit and smoke."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, current, exists, set_faults
from tests.e2e.gpu_hosts import KernelLog, Site, become, restore, wear_out

UNIT = "glm5-glm-5.service"
GpuHost = Callable[[str], None]


@pytest.fixture
def gpu_host(fresh_host: BedHost) -> Iterator[GpuHost]:
    """Makes ``node1`` a host like a recorded one."""
    set_faults(fresh_host)
    yield lambda recording: become(fresh_host, recording, UNIT)
    restore(fresh_host, UNIT)


@pytest.fixture
def kernel_log(fresh_host: BedHost) -> Iterator[KernelLog]:
    """What ``node1`` tells as its kernel's log."""
    log = KernelLog(fresh_host)
    log.open()
    yield log
    log.close()


@pytest.fixture
def site(tmp_path: Path, bed: Bed) -> Site:
    return Site(tmp_path / "site", bed)


def rows(cli: Cli, site: Site, command: str, expect: int) -> dict[str, dict[str, str]]:
    done = cli(command, "-i", site.write(), "--json", env=site.deployment.environment,
               expect=expect)  # fmt: skip
    return {row["name"]: row for row in done.json["hosts"]["node1"]["checks"]}


def test_glm_5_on_eight_gpus(cli: Cli, site: Site, gpu_host: GpuHost, fresh_host: BedHost) -> None:
    gpu_host("rtx-pro-6000-x8")
    before = rows(cli, site, "preflight", 0)
    assert {row["status"] for row in before.values()} == {"passed"}
    assert before["gpus"]["detail"] == "8 × NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert before["gpu devices"]["detail"] == "10 nodes in /dev"
    served = rows(cli, site, "up", 0)
    assert {name for name, row in served.items() if row["status"] != "passed"} == {"doctor"}
    assert served["attention backend"]["detail"] == (
        "attention=TRITON_MLA_SPARSE kv=fp8_ds_mla indexer=triton"
    )
    assert served["needle"]["detail"].startswith("found at 10%, 50%, 90% of 16")
    assert served["gpus"]["detail"] == (
        # A test host shares its machine's kernel, and cannot read its log.
        "8 × 83.0 of 96 GiB in use, the kernel's log cannot be read here"
    )
    unit = fresh_host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
    assert "DeviceAllow=char-nvidia-uvm rw" in unit
    environment = fresh_host.exec(["cat", f"{ROOT}/current/environment"]).stdout
    assert 'CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"' in environment
    # Its own server may hold the GPUs that a change will use again.
    assert rows(cli, site, "preflight", 0)["gpu use"]["status"] == "passed"
    again = cli("up", "-i", site.write(), "--json", env=site.deployment.environment, expect=0)
    assert again.json["hosts"]["node1"]["status"] == "unchanged"


def test_a_server_that_forgets_or_has_another_cache_is_taken_back(
    cli: Cli, site: Site, gpu_host: GpuHost, fresh_host: BedHost
) -> None:
    gpu_host("rtx-pro-6000-x8")
    set_faults(fresh_host, "forgets", "wrong-cache")
    reverted = cli("up", "-i", site.write(), "--json", env=site.deployment.environment, expect=4)
    failed = {
        row["name"]: row["hint"]
        for row in reverted.json["hosts"]["node1"]["checks"] if row["status"] == "failed"
    }  # fmt: skip
    assert set(failed) == {"needle", "attention backend"}
    assert "kv-cache-dtype" in failed["attention backend"]
    assert current(fresh_host) is None


@pytest.mark.parametrize(
    ("recording", "failing"),
    [
        ("none", {"gpus": "No devices were found"}),
        ("broken-driver", {"gpus": "Driver/library version mismatch"}),
        ("h200", {"gpus": "1 found, 8 wanted"}),
        ("mixed", {"gpus": "6 found, 8 wanted"}),
    ],
)
def test_hosts_that_are_refused(
    recording: str, failing: dict[str, str], cli: Cli, site: Site, gpu_host: GpuHost,
    fresh_host: BedHost,
) -> None:  # fmt: skip
    gpu_host(recording)
    found = rows(cli, site, "preflight", 1)
    failed = {name: row for name, row in found.items() if row["status"] == "failed"}
    assert set(failed) == set(failing)
    for name, text in failing.items():
        assert text in failed[name]["detail"]
        assert failed[name]["hint"]
    refused = cli("up", "-i", site.write(), env=site.deployment.environment, expect=1)
    assert "nothing was changed" in refused.output
    assert not exists(fresh_host, ROOT)


@pytest.mark.parametrize(
    ("recording", "gpus", "failing"),
    [
        ("mixed", [0, 4], {"capability": "L40S (8.9)"}),
        ("mig", [0, 1], {"gpu health": "GPU 0 is split by MIG"}),
        ("l40s-driver-535", [0, 1], {"driver": "driver 535.183.01"}),
        ("rtx-pro-6000-x8-busy", [4, 5], {"gpu use": "39.1 GiB are held by processes"}),
    ],
)
def test_gpus_that_are_refused(
    recording: str, gpus: list[int], failing: dict[str, str], cli: Cli, site: Site,
    gpu_host: GpuHost,
) -> None:  # fmt: skip
    gpu_host(recording)
    site.vars["gpus"] = len(gpus)
    site.override["gpus"] = {"devices": gpus, "min_memory_gib": 40}
    site.override["model"]["serve"] = "."
    found = rows(cli, site, "preflight", 1)
    failed = {name: row["detail"] for name, row in found.items() if row["status"] == "failed"}
    assert set(failed) == set(failing)
    for name, text in failing.items():
        assert text in failed[name]


def test_what_costs_something_is_told_and_stops_nothing(
    cli: Cli, site: Site, gpu_host: GpuHost
) -> None:
    gpu_host("workstation-with-troubles")
    site.vars["gpus"] = 4
    site.override["environment"] = {"NCCL_P2P_DISABLE": "1"}
    done = cli("up", "-i", site.write(), env=site.deployment.environment, expect=0)
    assert "! gpu health: persistence mode is off on GPU 0, 1, 2, 3" in done.stderr
    told = cli("preflight", "-i", site.write(), env=site.deployment.environment, expect=0)
    assert "gpu health" in told.stdout
    assert "→ `systemctl enable --now nvidia-persistenced`" in told.stdout


OFF_THE_BUS = "NVRM: Xid (PCI:0000:{}): 79, pid=1234, name=python3, GPU has fallen off the bus."


def test_what_the_kernels_log_says_of_gpus(
    cli: Cli, site: Site, gpu_host: GpuHost, kernel_log: KernelLog, fresh_host: BedHost
) -> None:
    gpu_host("rtx-pro-6000-x8")
    clean = rows(cli, site, "preflight", 0)["gpu health"]
    assert clean["detail"] == "no MIG, no ECC errors, no Xid since the boot"

    # Before the start: an old error of a GPU is worth a warning, a program's is not.
    kernel_log.say(
        "NVRM: Xid (PCI:0000:27:00): 31, pid=4242, name=python3, Ch 00000008, MMU Fault: ENGINE"
        " GRAPHICS GPC1 faulted @ 0x7f2a_1c000000."
    )
    kernel_log.say(OFF_THE_BUS.format("47:00"))
    wear_out(fresh_host, 5, 3)
    told = rows(cli, site, "preflight", 0)["gpu health"]
    assert told["status"] == "warning"
    assert "Xid 79 on GPU 3, 0 min ago: the GPU fell off the bus" in told["detail"]
    assert "GPU 5 has 3 uncorrected ECC errors" in told["detail"]
    assert "Xid 31" not in told["detail"]
    assert "journalctl -k --grep Xid" in told["hint"]
    assert "nvidia-smi --gpu-reset" in told["hint"]

    # What was before the start does not count against the server.
    served = rows(cli, site, "up", 0)["gpus"]
    assert served["status"] == "passed"
    assert served["detail"].endswith("in use, no Xid, GPU 5 had ECC errors before")

    # After the start: whatever it is, on one of the server's GPUs.
    kernel_log.say(OFF_THE_BUS.format("67:00"))
    failed = rows(cli, site, "smoke", 4)["gpus"]
    assert failed["status"] == "failed"
    assert (
        failed["detail"] == "Xid 79 on GPU 5 since the start: the GPU fell off the bus: power, "
        "slot or heat"
    )
    assert "journalctl -k --grep Xid" in failed["hint"]
