"""Every problem of a host, each with a hint, all at once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from glm5_deploy.hosts.facts.gpu import GpuFacts
from glm5_deploy.hosts.facts.ports import Listener
from glm5_deploy.hosts.facts.system import Disk, Os, Systemd
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.observed import Incumbent, Observed
from glm5_deploy.stages.preflight import GIB, preflight

from tests.unit.stages.situation import (
    NOW,
    bare,
    changed,
    complete,
    desired,
    gpus,
    system,
    unit,
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def problems(wanted: Any, observed: Observed) -> dict[str, Check]:  # noqa: ANN401
    return {check.name: check for check in preflight(wanted, observed) if check.status == "failed"}


def test_a_good_host_has_none() -> None:
    assert problems(desired(), bare()) == {}


@pytest.mark.parametrize(
    ("name", "facts", "detail", "hint"),
    [
        ("sudo", {"sudo": "refused"}, "refused", "allow root to use sudo"),
        ("sudo", {"sudo": "missing"}, "missing", "install sudo"),
        ("sudo", {"sudo": "password"}, "password", "become.password"),
        ("systemd", {"systemd": Systemd(0, "")}, "not running", "systemd unit"),
        ("systemd", {"systemd": Systemd(245, "running")}, "version 245", "247 or later"),
        (
            "disk",
            {"disks": (Disk(PurePosixPath("/opt"), 3, 1, 1),)},
            "0.0 GiB free on /opt",
            "free space on /opt",
        ),
        (
            "port",
            {"ports": (Listener("0.0.0.0", 8000, "nginx", 41),)},
            "8000 is taken by nginx (pid 41)",
            "serve.port",
        ),
        (
            "python",
            {"pythons": (), "os": Os("ubuntu", "24.04", "U")},
            "3.11",
            "python_tree",
        ),
    ],
)
def test_each_problem_is_named_with_a_hint(
    name: str, facts: dict[str, Any], detail: str, hint: str
) -> None:
    wanted = desired(needs={"disk_gib": 1, "libraries": []})
    found = problems(wanted, replace(bare(), system=system(**facts)))
    assert set(found) == {name}
    assert detail in found[name].detail
    assert hint in (found[name].hint or "")


def test_a_python_tree_without_the_python(tmp_path: Path) -> None:
    wanted = desired(
        settings={"python_tree": str(tmp_path)}, engine={"python": "3.12"}, needs={"libraries": []}
    )
    found = problems(wanted, bare())["python"]
    assert found.detail == f"{tmp_path} has no bin/python3.12"
    assert "uv python install" in (found.hint or "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.12").touch()
    assert problems(wanted, bare()) == {}


@pytest.mark.parametrize(
    ("disks", "detail", "hint"),
    [
        ([("/", 400, 9, ()), ("/var", 1, 9, ())], "1.0 GiB free on /var, 2.1 GiB needed", "/var"),
        ([("/", 400, 9, ("ro",))], "/ is mounted read-only", "can be written"),
        (
            [("/", 400, 9, ()), ("/var/cache", 9, 9, ("noexec",))],
            "/var/cache is mounted noexec, but the compiled kernels must run from there",
            "/var/cache/glm5-tiny",
        ),
        (
            [("/", 400, 9, ()), ("/opt", 400, 9, ("noexec",))],
            "/opt is mounted noexec, but the environment",
            "/opt/glm5/venvs",
        ),
        ([("/", 400, 0.05, ())], "50000 inodes free on /, 120000 needed", "free space on /"),
        (
            [("/", 400, 9, ()), ("/opt/glm5/models", 0, 9, ())],
            "0.0 GiB free on /opt/glm5/models",
            "set root to a larger disk",
        ),
    ],
)
def test_every_disk_that_is_written_to(
    disks: list[tuple[str, float, float, tuple[str, ...]]], detail: str, hint: str, tmp_path: Path
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("vllm==0.26.0 --hash=sha256:00\n")
    wanted = desired(lock=lock, gpus={"count": 1}, needs={"disk_gib": 30})
    found = tuple(
        Disk(PurePosixPath(mount), int(free * GIB), 10**8, int(files * 1e6), f)
        for mount, free, files, f in disks
    )
    row = problems(wanted, replace(bare(), system=system(disks=found, gpus=gpus(1))))["disk"]
    assert detail in row.detail
    assert hint in (row.hint or "")


def test_clock_skew_and_memory_and_several_at_once() -> None:
    machine = replace(system().machine, clock=NOW - 90, memory_total=1 << 30)
    observed = replace(bare(), system=system(machine=machine, sudo="missing"))
    found = problems(desired(needs={"memory_gib": 2}), observed)
    assert set(found) == {"clock", "memory", "sudo"}
    assert found["clock"].detail == "-90 s from here"


def test_packages_are_refused_where_installing_is_not_allowed() -> None:
    wanted = desired(settings={"packages": {"install": False}})
    observed = replace(bare(), system=system(libraries=frozenset()))
    found = problems(wanted, observed)
    assert found["packages"].hint == "run `apt-get install libnuma1`, or set packages.install: true"


def test_our_own_server_may_hold_the_port() -> None:
    wanted = desired()
    mine = replace(complete(wanted), system=system(ports=(Listener("127.0.0.1", 8000, "x", 77),)))
    assert problems(wanted, mine) == {}
    stopped = replace(mine, unit=unit(LoadState="loaded", ActiveState="failed"))
    assert set(problems(wanted, stopped)) == {"port"}


@pytest.mark.parametrize(
    ("spec", "found", "detail"),
    [
        ({"count": 8}, GpuFacts(), "0 found, 8 wanted"),
        ({"count": 8}, GpuFacts(problem="NVIDIA-SMI has failed"), "NVIDIA-SMI has failed"),
        ({"count": 2, "min_memory_gib": 128}, gpus(2), "GPU 0 has 96 GiB"),
        ({"count": 1, "devices": [7]}, gpus(2), "gpus.devices names 7"),
    ],
)
def test_gpus(spec: dict[str, Any], found: GpuFacts, detail: str) -> None:
    row = problems(desired(gpus=spec), replace(bare(), system=system(gpus=found)))["gpus"]
    assert detail in row.detail
    assert row.hint


@pytest.mark.parametrize(
    ("command", "refused"),
    [(["/opt/vllm/bin/vllm", "serve", "{model}"], False), (["{python}", "/srv/serve.py"], True)],
)
def test_the_version_of_python_matters_only_to_engines_that_run_on_it(
    command: list[str], refused: bool
) -> None:
    wanted = desired(engine={"python": "3.12", "command": command})
    observed = replace(bare(), system=system(tools={}))
    assert ("python" in problems(wanted, observed)) is refused


@pytest.mark.parametrize(
    ("settings", "advice"),
    [({}, "lower gpus.count with tensor-parallel"), ({"vars": {"gpus": 8}}, "lower vars.gpus, or")],
)
def test_too_few_gpus_says_what_to_lower(settings: dict[str, Any], advice: str) -> None:
    row = problems(desired(gpus={"count": 8}, settings=settings), bare())["gpus"]
    assert row.hint is not None
    assert row.hint.startswith(advice)


def test_a_model_must_be_there() -> None:
    wanted = replace(desired(model={"name": "m", "path": "/data/m"}), manifest=None)
    assert "no files in /data/m" in problems(wanted, bare())["model"].detail
    incomplete = desired(model={"name": "m", "source": "/here", "serve": "big.gguf"})
    assert "lacks big.gguf" in problems(incomplete, bare())["model"].detail


def test_a_model_that_the_services_user_may_not_read() -> None:
    wanted = desired(model={"name": "tiny", "path": "/home/ann/tiny"}, needs={"libraries": []})
    observed = changed(complete(wanted), model_unreadable="/home/ann/tiny")
    found = problems(wanted, observed)["model"]
    assert found.detail == "user glm5 cannot read /home/ann/tiny"
    assert "chmod -R o+rX /home/ann/tiny" in (found.hint or "")


@pytest.mark.parametrize(
    ("text", "detail", "hint"),
    [
        (
            "EnvironmentFile=/old root/releases/x/secrets\n# Written by glm5-deploy",
            "/old root",
            "down",
        ),
        ("[Service]\nExecStart=/usr/bin/theirs", "not from this program", "remove"),
    ],
)
def test_a_unit_of_another_root_or_program_is_not_taken(text: str, detail: str, hint: str) -> None:
    wanted = desired()
    there = changed(complete(wanted), files={str(wanted.paths.unit_file): text})
    row = problems(wanted, there)["unit"]
    assert detail in row.detail
    assert hint in (row.hint or "")
    idle = unit(LoadState="loaded", ActiveState="inactive", UnitFileState="disabled")
    assert problems(wanted, replace(there, unit=idle)) == {}


def test_the_service_of_an_earlier_name_may_hold_the_port() -> None:
    wanted, earlier = desired(service="new"), complete(desired())
    mine = replace(earlier, system=system(ports=(Listener("127.0.0.1", 8000, "x", 99),)))
    mine = replace(mine, unit=unit(LoadState="not-found", ActiveState="inactive"))
    assert set(problems(wanted, mine)) == {"port"}
    incumbent = Incumbent("glm5-tiny.service", running=True, main_pid=77)
    assert problems(wanted, changed(mine, incumbent=incumbent)) == {}


def test_an_engine_that_the_host_should_have_must_be_there() -> None:
    observed = changed(bare(), engine_missing="/opt/vllm/bin/vllm")
    row = problems(desired(), observed)["engine"]
    assert row.detail == "/opt/vllm/bin/vllm is not there, or cannot be executed"
    assert "engine.lock" in (row.hint or "")
