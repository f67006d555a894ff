"""The README's first command, whole: a host, real vLLM, smoke test, logs; then again; then gone."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.demo.bed import BedHost
from glm5_deploy.demo.place import HOST, Place
from glm5_deploy.demo.rootfs import require_prerequisites

from tests.e2e.conftest import Cli, CliResult

pytestmark = pytest.mark.vllm
UNIT = "glm5-demo-cpu.service"
MODEL = "/opt/glm5/models/tiny-glm5/glm5-tiny-q8_0.gguf"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("demo") / "with space")
    yield place
    place.remove()


def demo(cli: Cli, place: Place, *more: str, expect: int = 0) -> CliResult:
    return cli("demo", "--folder", place.folder, *more, expect=expect, timeout=1500)


def test_a_demo_serves_and_proves_a_model_on_real_vllm(cli: Cli, place: Place) -> None:
    require_prerequisites()
    said = demo(cli, place).output
    inventory = place.inventory
    for command in ("up", "smoke", "logs"):
        assert f"glm5-deploy {command} -i" in said
    smoke = cli("smoke", "-i", inventory, "--json", expect=0).json
    checks = {check["name"]: check for check in smoke["hosts"][HOST]["checks"]}
    # the greedy tokens of transformers, computed when the file was made
    assert checks["expected answer 1"]["status"] == "passed"
    assert checks["expected answer 2"]["status"] == "passed"
    assert {check["status"] for check in checks.values()} <= {"passed", "skipped"}
    assert checks["doctor"]["status"] == "passed"
    assert checks["doctor"]["detail"].startswith("vLLM 0.32.0")
    # really vLLM, really on the host
    host = place.bed().hosts[HOST]
    assert "VLLM::" in host.exec(["ps", "-eo", "comm"]).stdout
    logs = cli("logs", "-i", inventory, "-n", "400", expect=0).stdout
    assert "Initializing a V1 LLM engine (v0.32.0)" in logs
    assert re.search(r"glm5_kernel: \d+ of \d+ tensors loaded, \d+ of them quantised", logs)


def test_a_second_demo_changes_nothing(cli: Cli, place: Place) -> None:
    host = place.bed().hosts[HOST]
    started = "systemctl", "show", "--property=ExecMainStartTimestamp", UNIT
    before = host.exec(started).stdout
    assert re.search(rf"{HOST} +unchanged +0 changes", demo(cli, place).output)
    assert host.exec(started).stdout == before
    up = cli("up", "-i", place.inventory, "--json", expect=0).json
    assert up["hosts"][HOST]["status"] == "unchanged"


def test_the_api_key_is_shown_nowhere(cli: Cli, place: Place) -> None:
    key = place.api_key.read_text().strip()
    assert stat.S_IMODE(place.api_key.stat().st_mode) == 0o600
    host = place.bed().hosts[HOST]
    said = demo(cli, place).output
    assert key not in said
    assert key not in place.inventory.read_text()
    assert key not in host.exec(["ps", "-eo", "args"]).stdout
    assert key not in host.exec(["journalctl", "--no-pager"]).stdout
    assert key not in json.dumps(cli("status", "-i", place.inventory, "--json").json)


def test_its_speed_is_measured_with_vllms_own_benchmark(cli: Cli, place: Place) -> None:
    words = ("--concurrency", "2", "--prompt-tokens", "60", "--output-tokens", "8")
    done = cli("bench", "-i", place.inventory, *words, "--json", expect=0)
    found = done.json["hosts"][HOST]
    assert found["vllm"].startswith("0.32.0")
    (load,) = found["loads"]
    assert (load["status"], load["completed"], load["error"]) == ("measured", 4, None)
    assert load["tokens_per_second"] * load["seconds"] == pytest.approx(4 * 8, rel=0.01)
    assert load["measured_prompt_tokens"] == pytest.approx(60, abs=2)
    assert 0 < load["ttft_ms"]["median"] <= load["ttft_ms"]["p99"]
    assert 0 < load["tpot_ms"]["median"] <= load["tpot_ms"]["p99"]
    key = place.api_key.read_text().strip()
    host = place.bed().hosts[HOST]
    assert key not in done.output + host.exec(["journalctl", "--no-pager"]).stdout


def test_the_doctor_is_green_on_the_host_and_names_its_vllm(place: Place) -> None:
    host = place.bed().hosts[HOST]
    python = f"{venv_of(host)}/bin/python"
    document = json.loads(host.exec([python, "-m", "glm5_kernel", "doctor", "--json"]).stdout)
    assert document["ok"] is True
    assert document["versions"]["vllm"].startswith("0.32.0")
    states = {part["name"]: part["state"] for part in document["parts"]}
    assert states == {"attention": "stock", "indexer": "stock", "gguf": "registered"}
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["entry point"]["status"] == checks["registration"]["status"] == "passed"
    assert (checks["merge"]["status"], checks["merge"]["detail"]) == ("skipped", "no GPU")
    table = host.exec([python, "-m", "glm5_kernel", "doctor"]).stdout
    assert table.splitlines()[-1].startswith("ok: ")


def test_a_host_that_the_doctor_refuses_keeps_its_server(cli: Cli, place: Place) -> None:
    host = place.bed().hosts[HOST]
    before = invocation(host)
    inventory = overridden(place, environment={"GLM5_GGUF": "nonsense"})
    for _ in range(2):  # what was installed and written meanwhile does not let it pass
        refused = cli("up", "-i", inventory, "--json", expect=1).json["hosts"][HOST]
        assert refused["status"] == "failed"
        assert "the kernel doctor refuses this host" in refused["error"]["message"]
        assert "GLM5_GGUF=nonsense" in refused["error"]["message"]
        statuses = {check["name"]: check["status"] for check in refused["checks"]}
        assert (statuses["vLLM"], statuses["registration"]) == ("passed", "failed")
        assert not {"release", "service"} & {change["stage"] for change in refused["changes"]}
    assert invocation(host) == before


def test_a_server_is_not_stopped_for_arguments_that_vllm_refuses(cli: Cli, place: Place) -> None:
    host = place.bed().hosts[HOST]
    before, current = invocation(host), venv_of(host)
    inventory = overridden(place, serve={"args": {"max-num-sequences": 2}})
    refused = cli("up", "-i", inventory, "--json", expect=1).json["hosts"][HOST]
    assert refused["status"] == "failed"
    assert "vLLM refuses to serve this; nothing was switched" in refused["error"]["message"]
    assert "unrecognized arguments: --max-num-sequences" in refused["error"]["message"]
    assert refused["error"]["hint"] == "correct serve.args.max-num-sequences in the profile"
    assert (invocation(host), venv_of(host)) == (before, current)


def test_the_plugin_is_found_in_server_engine_and_worker(cli: Cli, place: Place) -> None:
    host = place.bed().hosts[HOST]
    # vLLM logs nothing of plugins while it reads the server's arguments: a setting that the plugin
    # refuses shows that it was called there, before there is an engine.
    serve = [f"{venv_of(host)}/bin/vllm", "serve", MODEL]
    refused = host.exec(["env", "GLM5_GGUF=nonsense", *serve], check=False)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "GLM5_GGUF=nonsense" in said
    assert "EngineCore" not in said

    inventory = overridden(
        place,
        serve={"args": {"distributed-executor-backend": "mp"}},
        environment={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    up = cli("up", "-i", inventory, "--json", expect=0).json["hosts"][HOST]
    assert {("kernel", "verify"), ("release", "verify")} <= {
        (change["stage"], change["action"]) for change in up["changes"]
    }
    journal = host.exec(
        ["journalctl", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={invocation(host)}"]
    ).stdout
    line = r"^\((\w+)\S* pid=\d+\) .*glm5_kernel: vLLM 0\.32\.0"
    assert set(re.findall(line, journal, re.MULTILINE)) == {"EngineCore", "VllmWorker"}


def venv_of(host: BedHost) -> str:
    """The environment of the release that is served."""
    profile = json.loads(host.exec(["cat", "/opt/glm5/current/profile.json"]).stdout)
    return f"/opt/glm5/venvs/{profile['venv']}"


def invocation(host: BedHost) -> str:
    """Changes with every start of the service."""
    show = ["systemctl", "show", "--value", "--property=InvocationID", UNIT]
    return host.exec(show).stdout.strip()


def overridden(place: Place, **more: dict[str, Any]) -> Path:
    """The demo's inventory with more in the host's `override`."""
    document = yaml.safe_load(place.inventory.read_text())
    document["hosts"][HOST]["override"] |= more
    path = place.folder / "overridden.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_down_leaves_nothing(cli: Cli, place: Place) -> None:
    bed = place.bed()
    demo(cli, place, "--down")
    assert not place.folder.exists()
    assert not bed.folder.exists()
    assert str(bed.folder) not in Path("/proc/self/mountinfo").read_text()
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert bed.network.namespace(0) not in spaces
    demo(cli, place, "--down")
