"""``up`` on real hosts: first run, nothing to do, and what each kind of change touches."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import API_KEY, ROOT, UNIT, Deployment, current, exists, invocation, show


@pytest.fixture
def deployment(tmp_path: Path, bed: Bed, fresh_host: BedHost) -> Deployment:
    assert fresh_host.name == "node1"
    return Deployment(tmp_path / "site", bed)


def run(cli: Cli, deployment: Deployment, *words: str, expect: int | None = 0):  # noqa: ANN201
    inventory = deployment.write()
    command, *rest = words
    return cli(command, "-i", inventory, *rest, env=deployment.environment, expect=expect)


def stages(document: dict) -> list[str]:
    return [f"{c['stage']} {c['action']}" for c in document["hosts"]["node1"]["changes"]]


def test_first_up_serves_and_second_changes_nothing(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    first = run(cli, deployment, "up", "--json").json
    assert first["ok"]
    assert first["hosts"]["node1"]["status"] == "changed"
    assert stages(first) == [
        "system create", "system create", "system write", "venv create", "model sync",
        "release create", "service enable", "service switch",
    ]  # fmt: skip
    checks = {c["name"]: c["status"] for c in first["hosts"]["node1"]["checks"]}
    assert set(checks.values()) <= {"passed", "skipped"}
    assert checks["expected answer 1"] == checks["wrong key refused"] == "passed"
    before, release = invocation(fresh_host), current(fresh_host)
    assert release == first["hosts"]["node1"]["release"]

    reloads = reload_count(fresh_host)
    second = run(cli, deployment, "up", "--json").json
    assert second["hosts"]["node1"]["status"] == "unchanged"
    assert second["hosts"]["node1"]["changes"] == []
    assert invocation(fresh_host) == before
    assert reload_count(fresh_host) == reloads
    assert not exists(fresh_host, f"{ROOT}/state/lock")
    assert not exists(fresh_host, f"{ROOT}/state/pending.json")


def reload_count(host: BedHost) -> int:
    """How often systemd was told to reload, by its own journal."""
    said = host.exec(["journalctl", "_PID=1", "-o", "cat", "--grep", "Reloading"], check=False)
    return len(said.stdout.splitlines())


def test_a_changed_argument_makes_a_release_on_the_same_venv(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    run(cli, deployment, "up")
    before, first = invocation(fresh_host), current(fresh_host)
    deployment.profile["serve"]["args"]["max-model-len"] = 256
    changed = run(cli, deployment, "up", "--json").json
    assert stages(changed) == ["release create", "release verify", "service switch"]
    assert current(fresh_host) != first
    assert invocation(fresh_host) != before
    assert len(fresh_host.exec(["ls", f"{ROOT}/venvs"]).stdout.split()) == 1
    previous = fresh_host.exec(["readlink", f"{ROOT}/previous"]).stdout
    assert Path(previous.strip()).name == first


def test_a_changed_lock_makes_a_new_venv(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    run(cli, deployment, "up")
    deployment.lock("1.1")
    changed = run(cli, deployment, "up", "--json").json
    assert stages(changed) == [
        "venv create", "release create", "release verify", "service switch",
    ]  # fmt: skip
    venvs = fresh_host.exec(["ls", f"{ROOT}/venvs"]).stdout.split()
    assert len(venvs) == 2
    unit = fresh_host.exec(["cat", f"{ROOT}/current/unit"]).stdout
    new = json.loads(fresh_host.exec(["cat", f"{ROOT}/current/profile.json"]).stdout)["venv"]
    assert f"{ROOT}/venvs/{new}/bin/vllm" in unit


def test_a_changed_expectation_restarts_nothing(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    run(cli, deployment, "up")
    before = invocation(fresh_host)
    deployment.profile["smoke"]["expect"].append(
        {"prompt": "again", "max_tokens": 2, "tokens": [1, 2]}
    )
    second = run(cli, deployment, "up", "--json", "--smoke").json
    assert second["hosts"]["node1"]["status"] == "unchanged"
    assert "expected answer 2" in {c["name"] for c in second["hosts"]["node1"]["checks"]}
    assert invocation(fresh_host) == before


def test_check_changes_nothing_and_up_does_just_that(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    planned = run(cli, deployment, "plan", "--json").json
    assert not exists(fresh_host, ROOT)
    done = run(cli, deployment, "up", "--json").json
    assert planned["hosts"]["node1"]["changes"] == done["hosts"]["node1"]["changes"]


def test_a_stopped_service_is_started_again(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    run(cli, deployment, "up")
    fresh_host.exec(["systemctl", "stop", UNIT])
    again = run(cli, deployment, "up", "--json").json
    assert stages(again) == ["service start"]
    assert show(fresh_host, "ActiveState")["ActiveState"] == "active"


def test_an_edited_unit_is_put_right(cli: Cli, deployment: Deployment, fresh_host: BedHost) -> None:
    run(cli, deployment, "up")
    path = f"/etc/systemd/system/{UNIT}"
    fresh_host.exec(["sed", "-i", "s/^RestartSec=.*/RestartSec=1/", path])
    again = run(cli, deployment, "up", "--json").json
    assert stages(again) == ["release verify", "service switch"]
    assert "RestartSec=30" in fresh_host.exec(["cat", path]).stdout


def test_rollback_and_down_and_purge(cli: Cli, deployment: Deployment, fresh_host: BedHost) -> None:
    run(cli, deployment, "up")
    first = current(fresh_host)
    deployment.profile["serve"]["args"]["max-model-len"] = 256
    run(cli, deployment, "up")
    second = current(fresh_host)
    run(cli, deployment, "rollback")
    assert current(fresh_host) == first
    run(cli, deployment, "rollback", "--to", second[:6])
    assert current(fresh_host) == second
    listed = run(cli, deployment, "releases", "--json").json["hosts"]["node1"]["releases"]
    assert {tuple(row["roles"]) for row in listed} == {("current",), ("previous",)}
    assert run(cli, deployment, "rollback", "--to", "nope", expect=None).returncode == 2

    run(cli, deployment, "restart")
    run(cli, deployment, "down")
    assert show(fresh_host, "ActiveState", "UnitFileState") == {
        "ActiveState": "inactive", "UnitFileState": "disabled",
    }  # fmt: skip
    assert run(cli, deployment, "down", "--models", expect=None).returncode == 2
    run(cli, deployment, "down", "--purge", "--yes")
    assert fresh_host.exec(["ls", ROOT]).stdout.split() == ["models"]
    assert not exists(fresh_host, f"/etc/systemd/system/{UNIT}")
    nothing = run(cli, deployment, "restart", expect=None)
    assert nothing.returncode == 2
    assert "glm5-deploy up" in nothing.output
    run(cli, deployment, "down", "--purge", "--models", "--yes")
    assert not exists(fresh_host, ROOT)


def test_pruning_keeps_current_and_previous(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    for length in (100, 200, 300, 400):
        deployment.profile["serve"]["args"]["max-model-len"] = length
        deployment.lock(f"1.{length}")
        run(cli, deployment, "up", "--keep-releases", "0")
    left = fresh_host.exec(["ls", f"{ROOT}/releases"]).stdout.split()
    previous = Path(fresh_host.exec(["readlink", f"{ROOT}/previous"]).stdout.strip()).name
    assert sorted(left) == sorted([current(fresh_host), previous])
    assert len(fresh_host.exec(["ls", f"{ROOT}/venvs"]).stdout.split()) == 2


def test_the_key_shows_nowhere(cli: Cli, deployment: Deployment, fresh_host: BedHost) -> None:
    outputs = [
        run(cli, deployment, *words).output
        for words in (("up", "-v"), ("up", "--json", "--smoke"), ("render",), ("plan",), ("audit",))
    ]
    assert not any(API_KEY in text for text in outputs)
    secrets = f"{ROOT}/current/secrets"
    assert fresh_host.exec(["stat", "-c", "%a %U", secrets]).stdout.strip() == "600 root"
    assert API_KEY in fresh_host.exec(["cat", secrets]).stdout
    places = ("/etc/systemd/system", f"{ROOT}/state", f"{ROOT}/lib", "/var/log", "/run/systemd")
    found = fresh_host.exec(["grep", "-rlaF", API_KEY, *places], check=False)
    assert found.stdout == ""
    journal = fresh_host.exec(["journalctl", "--no-pager", "-o", "export"]).stdout
    assert API_KEY not in journal
    assert API_KEY not in fresh_host.exec(["ps", "axww", "-o", "args"]).stdout
    state = cli.home / ".local/state"
    assert not any(API_KEY in p.read_text() for p in state.rglob("*") if p.is_file())


def test_up_ends_with_a_line_that_works(
    cli: Cli, deployment: Deployment, fresh_host: BedHost, tmp_path: Path
) -> None:
    said = run(cli, deployment, "up").stderr
    assert current(fresh_host)
    line = next(line for line in said.splitlines() if line.startswith("  ssh "))
    environment = {**os.environ, **deployment.environment}
    # Into a file: the tunnel outlives curl and would keep a pipe open.
    with (tmp_path / "answer").open("w+") as file:
        subprocess.run(["bash", "-c", line], env=environment, stdout=file, timeout=60, check=True)
        file.seek(0)
        answer = json.load(file)
    assert answer["choices"][0]["text"].startswith(" one two three")


def test_the_kernel_wheel_is_part_of_the_environment(
    cli: Cli, deployment: Deployment, fresh_host: BedHost
) -> None:
    """It is installed and asked; the stand-in for vLLM is none, so nothing is switched."""
    deployment.profile["engine"]["kernel"] = True
    refused = run(cli, deployment, "up", "--json", expect=1).json
    assert "vLLM: absent" in refused["hosts"]["node1"]["error"]["message"]
    python = f"{ROOT}/venvs/*/bin/python"
    said = fresh_host.exec(
        ["sh", "-c", f"{python} -c 'import glm5_kernel as k; print(k.__version__)'"]
    )
    assert said.stdout.strip()
    assert not exists(fresh_host, f"{ROOT}/current")
