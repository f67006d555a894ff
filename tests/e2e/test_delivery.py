"""How engine and model come to hosts: from another host, by a command there, from a wheelhouse, on
top of the host's own vLLM; and what is said of a model's files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import time
import zipfile
from pathlib import Path

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import Cli
from tests.e2e.deployment import ROOT, Deployment, current, engine_wheel, eventually, exists, show
from tests.unit.gguf.support import SMALL, write_model

MODEL = f"{ROOT}/models/tiny"
FAKES = Path(__file__).parents[1] / "fakes"
USER = "delivery-user"


@pytest.fixture
def pair(tmp_path: Path, bed: Bed, fresh_hosts: list[BedHost]) -> Deployment:
    """Two hosts; the first gets its model from here, the second from the first."""
    assert [host.name for host in fresh_hosts[:2]] == ["node1", "node2"]
    made = Deployment(tmp_path / "site", bed, ("node1", "node2"))
    made.model.joinpath("a name with spaces.bin").write_bytes(os.urandom(1 << 20))
    made.hosts = {"node2": {"override": {"model": {"source": None, "source_host": "node1"}}}}
    return made


@pytest.fixture
def alone(tmp_path: Path, bed: Bed, fresh_host: BedHost) -> Deployment:
    assert fresh_host.name == "node1"
    return Deployment(tmp_path / "site", bed)


def run(cli: Cli, deployment: Deployment, *words: str, expect: int | None = 0, **more: str):  # noqa: ANN201
    inventory = deployment.write()
    environment = {**deployment.environment, **more}
    return cli(*words, "-i", inventory, env=environment, expect=expect)


def digests(host: BedHost, folder: str = MODEL) -> dict[str, str]:
    """SHA-256 of each file by its name; hidden ones are transfers that did not end."""
    said = host.exec(["sh", "-c", f"cd '{folder}' && find . -type f -exec sha256sum {{}} +"])
    rows = (line.split("  ./", 1) for line in said.stdout.splitlines())
    return {name: digest for digest, name in rows}


def authorized(host: BedHost, user: str = "root") -> str:
    home = "/root" if user == "root" else f"/home/{user}"
    listing = host.exec(["sh", "-c", f"cat {home}/.ssh/authorized_keys; ls -A {home}/.ssh"])
    return listing.stdout


# --- from another host ---------------------------------------------------------------------------


def test_a_model_comes_straight_from_another_host(
    cli: Cli, pair: Deployment, fresh_hosts: list[BedHost]
) -> None:
    first, second = fresh_hosts[:2]
    run(cli, pair, "up", "--host", "node1")
    before = authorized(first)
    told = run(cli, pair, "up", "--host", "node2", "--json").json["hosts"]["node2"]
    assert {"stage": "model", "action": "sync", "target": MODEL} in told["changes"]
    assert digests(second) == digests(first)
    assert len(digests(second)) == 4
    assert authorized(first) == before
    assert not exists(second, f"{ROOT}/cache/uploads/copy")
    assert "glm5-copy" not in second.exec(["ls", f"{ROOT}/cache/uploads"]).stdout
    again = run(cli, pair, "up", "--host", "node2", "--json").json["hosts"]["node2"]
    assert again["changes"] == []

    # Damage of the same size, with the old time, is seen by the inode's own time and mended.
    file = f"{MODEL}/model.safetensors"
    script = f"touch -r '{file}' /tmp/when; printf x | dd of='{file}' bs=1 seek=99 conv=notrunc;"
    second.exec(["sh", "-c", script + f" touch -r /tmp/when '{file}'"])
    assert digests(second) != digests(first)
    mended = run(cli, pair, "up", "--host", "node2", "--json").json["hosts"]["node2"]
    assert [change["stage"] for change in mended["changes"]] == ["model"]
    assert digests(second) == digests(first)


def test_both_at_once_by_users_without_privileges(
    cli: Cli, pair: Deployment, fresh_hosts: list[BedHost]
) -> None:
    first, second, third = fresh_hosts
    pair.names = ("node1", "node2", "node3")
    pair.hosts["node3"] = pair.hosts["node2"]
    for host in fresh_hosts:
        host.add_user(USER, "nopasswd")
    try:
        pair.user = USER
        run(cli, pair, "model", "sync", "--host", "node1")
        before = authorized(first, USER)
        run(cli, pair, "model", "sync", "--host", "node2", "--host", "node3")
        assert digests(third) == digests(second) == digests(first)
        assert authorized(first, USER) == before
        owner = second.exec(["stat", "-c", "%U", f"{MODEL}/model.safetensors"]).stdout.strip()
        assert owner == USER
    finally:
        for host in fresh_hosts:
            host.remove_user(USER)


def test_the_key_of_a_transfer_reads_one_folder_and_nothing_else(
    cli: Cli, pair: Deployment, fresh_hosts: list[BedHost]
) -> None:
    first, second = fresh_hosts[:2]
    run(cli, pair, "model", "sync", "--host", "node1")
    first.exec(["truncate", "-s", "512M", f"{MODEL}/large.bin"])
    first.exec(["rm", f"{MODEL}/MANIFEST.sha256"])
    pair.hosts["node1"] = {"override": {"model": {"source": None}}}
    run(cli, pair, "model", "verify", "--host", "node1")
    process = cli.start(
        "model", "sync", "--host", "node2", "-i", pair.write(), env=pair.environment
    )
    pause = ["systemctl", "kill", "--signal=STOP", "glm5-job-copy-tiny.service"]
    eventually(lambda: second.exec(pause, check=False).returncode == 0)
    try:
        assert 'restrict,expiry-time="20' in authorized(first)
        found = second.exec(["sh", "-c", f"ls -d {ROOT}/cache/uploads/glm5-copy-*"])
        scratch = found.stdout.strip()
        ssh = ["timeout", "20", "ssh", "-n", "-F", f"{scratch}/config", "source", "cat /etc/shadow"]
        assert "root:" not in second.exec(ssh, check=False).stdout
        rsync = ["rsync", f"--rsh=ssh -F {scratch}/config"]
        write = second.exec([*rsync, "/etc/hostname", "source::model/"], check=False)
        assert write.returncode != 0
        assert not exists(first, f"{MODEL}/hostname")
        beyond = second.exec([*rsync, "source::model/../../state/", "/tmp/stolen"], check=False)
        assert beyond.returncode != 0
        read = second.exec([*rsync, "source::model/config.json", "/tmp/"], check=False)
        assert read.returncode == 0, read.stderr
        assert second.exec(["stat", "-c", "%a", f"{scratch}/key"]).stdout.strip() == "600"
    finally:
        second.exec([*pause[:2], "--signal=CONT", pause[3]])
        process.communicate(timeout=300)
    assert process.returncode == 0
    assert "glm5-copy" not in authorized(first)
    assert digests(second) == digests(first)


# --- by a command on the host --------------------------------------------------------------------

FETCH = """#!/bin/sh
# Slow, and says how often it was begun.
echo begun >> /srv/fetched
printf '%s' "$TOKEN" | sha256sum | cut -d' ' -f1 > /srv/token
printf '{"architectures": ["FakeForCausalLM"]}' > "$1/config.json"
n=0; while [ $n -lt "$2" ]; do n=$((n + 1)); printf '\\rdownloading %s%%' $n; sleep 1; done
head -c 1000000 /dev/zero > "$1/model.safetensors"
"""


def fetched_by(deployment: Deployment, host: BedHost, seconds: int) -> None:
    host.exec(["rm", "-f", "/srv/fetched", "/srv/token"])
    host.exec(["tee", "/srv/fetch.sh"], input=FETCH)
    host.exec(["chmod", "755", "/srv/fetch.sh"])
    deployment.profile["model"] = {
        "name": "tiny",
        "fetch": ["/srv/fetch.sh", "{folder}", str(seconds)],
        "fetch_secrets": {"TOKEN": "${env:HUB_TOKEN}"},
    }


def test_a_command_on_the_host_goes_on_without_us(
    cli: Cli, alone: Deployment, fresh_host: BedHost
) -> None:
    alone.defaults = {"connection": {"keepalive": 1, "connect_timeout": 3, "connect_attempts": 2}}
    fetched_by(alone, fresh_host, 12)
    secret = "hub-token-that-must-not-show"
    environment = {**alone.environment, "HUB_TOKEN": secret}
    process = cli.start("up", "-v", "-i", alone.write(), env=environment)
    eventually(lambda: exists(fresh_host, "/srv/fetched"))
    units = fresh_host.exec(["systemctl", "list-units", "--plain", "--no-legend", "glm5-job-*"])
    unit = units.stdout.split()[0]
    assert unit.startswith("glm5-job-fetch-tiny-")
    assert secret not in fresh_host.exec(["systemctl", "show", unit]).stdout
    fresh_host.cut()
    time.sleep(8)
    fresh_host.restore()
    stdout, stderr = process.communicate(timeout=180)
    assert secret not in stdout + stderr
    if process.returncode == 3:  # it was away for too long: the next run joins the work
        run(cli, alone, "up", HUB_TOKEN=secret)
    assert fresh_host.exec(["cat", "/srv/fetched"]).stdout == "begun\n"
    told = fresh_host.exec(["cat", "/srv/token"]).stdout.strip()
    assert told == hashlib.sha256(secret.encode()).hexdigest()
    assert "env" not in fresh_host.exec(["ls", f"{ROOT}/state"]).stdout
    assert show(fresh_host, "ActiveState")["ActiveState"] == "active"
    again = run(cli, alone, "up", "--json", HUB_TOKEN=secret).json
    assert again["hosts"]["node1"]["changes"] == []


def test_a_command_that_fails_says_why_and_is_run_again(
    cli: Cli, alone: Deployment, fresh_host: BedHost
) -> None:
    fetched_by(alone, fresh_host, 0)
    secret = "hub-token-that-must-not-show"
    script = '#!/bin/sh\necho "no such repository for $TOKEN"; exit 7'
    fresh_host.exec(["tee", "/srv/fetch.sh"], input=script)
    failed = run(cli, alone, "model", "sync", "-v", expect=1, HUB_TOKEN=secret)
    assert "no such repository for ********" in failed.output
    assert secret not in failed.output
    assert "env" not in fresh_host.exec(["ls", f"{ROOT}/state"]).stdout
    assert "fetch.sh ended with status 7" in failed.output
    assert current(fresh_host) is None
    fetched_by(alone, fresh_host, 0)
    alone.profile["model"]["manifest_sha256"] = "f" * 64
    unsigned = run(cli, alone, "model", "sync", expect=1, HUB_TOKEN="x")
    assert "model.manifest_sha256" in unsigned.output
    assert not exists(fresh_host, f"{MODEL}/MANIFEST.sha256")


# --- verify, sync, inspect -----------------------------------------------------------------------


def test_verify_finds_damage_and_sync_mends_it(
    cli: Cli, alone: Deployment, fresh_host: BedHost
) -> None:
    nothing = run(cli, alone, "model", "verify", expect=1)
    assert "model sync" in nothing.output
    synced = run(cli, alone, "model", "sync", "--json").json["hosts"]["node1"]
    assert synced["status"] == "changed"
    assert synced["files"] == 2
    assert run(cli, alone, "model", "sync", "--json").json["hosts"]["node1"]["changes"] == []
    run(cli, alone, "model", "verify")
    right = digests(fresh_host)
    fresh_host.exec(["sh", "-c", f"printf x >> {MODEL}/model.safetensors"])
    fresh_host.exec(["truncate", "-s", "-1", f"{MODEL}/model.safetensors"])
    file = f"{MODEL}/model.safetensors"
    fresh_host.exec(["sh", "-c", f"printf x | dd of={file} bs=1 seek=7 conv=notrunc"])
    damaged = run(cli, alone, "model", "verify", expect=1)
    assert "model.safetensors" in damaged.output
    run(cli, alone, "model", "sync")
    assert digests(fresh_host) == right
    assert current(fresh_host) is None


def gpus_on(host: BedHost, recording: str) -> None:
    """A stand-in for nvidia-smi that answers from a recording."""
    program = (FAKES / "nvidia_smi.py").read_text()
    host.exec(["tee", "/usr/local/bin/nvidia-smi"], input=program)
    host.exec(["chmod", "755", "/usr/local/bin/nvidia-smi"])
    told = (FAKES / "gpus" / f"{recording}.json").read_text()
    host.exec(["tee", "/usr/local/bin/recording.json"], input=told)


def test_inspect_and_memory_plan_read_headers_on_the_host(
    cli: Cli, alone: Deployment, fresh_host: BedHost, tmp_path: Path
) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    paths = write_model(folder, SMALL, split=3)
    there = "/srv/gguf models"
    fresh_host.exec(["rm", "-rf", there])
    fresh_host.exec(["mkdir", "-p", there])
    for path in paths:
        # Sparse: the header's bytes, then a hole of the right length.
        head = path.read_bytes().rstrip(b"\0")
        write = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.stdin.read()))"
        target = f"{there}/{path.name}"
        fresh_host.exec(["python3", "-c", write, target], input=head.hex())
        fresh_host.exec(["truncate", "-s", str(path.stat().st_size), f"{there}/{path.name}"])
    alone.profile["model"] = {"name": "tiny", "path": there, "serve": paths[1].name}
    found = run(cli, alone, "model", "inspect", "--json").json["hosts"]["node1"]["model"]
    assert found["hp"]["layers"] == SMALL.layers
    assert len(found["files"]) == 3
    text = run(cli, alone, "model", "inspect").stdout
    assert "KV cache" in text

    alone.profile["gpus"] = {"count": 2}
    alone.profile["serve"]["args"] = {"tensor-parallel-size": 2, "max-model-len": 4096}
    gpus_on(fresh_host, "rtx-pro-6000-x8")
    try:
        plan = run(cli, alone, "plan", "--memory", "--json").json["hosts"]["node1"]["memory"]
        assert plan["gpus"] == 2
        assert plan["kv_tokens"] > 4096
        table = run(cli, alone, "plan", "--memory").stdout
        assert "longest context" in table

        alone.profile["serve"]["args"]["gpu-memory-utilization"] = 0.02
        small = run(cli, alone, "plan", "--memory", expect=1)
        assert "gpu-memory-utilization: 0.95" in small.output
        refused = run(cli, alone, "up", expect=1)
        assert "gpu memory" in refused.output
        assert not exists(fresh_host, ROOT)
        fresh_host.exec(["rm", f"{there}/{paths[2].name}"])
        missing = run(cli, alone, "model", "inspect", expect=1)
        assert paths[2].name in missing.output
    finally:
        fresh_host.exec(["rm", "-f", "/usr/local/bin/nvidia-smi", "/usr/local/bin/recording.json"])


# --- engines -------------------------------------------------------------------------------------


def test_a_wheelhouse_serves_a_host_without_an_index(
    cli: Cli, alone: Deployment, fresh_host: BedHost, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    (alone.folder / "wheels").rename(index)
    (alone.folder / "wheels").mkdir()
    alone.write()
    lock = alone.folder / "lock.txt"
    refused = run(cli, alone, "up", expect=1)
    assert "lacks fake-engine==1.0" in refused.output
    assert "glm5-deploy wheelhouse" in refused.output
    assert not exists(fresh_host, ROOT)

    words = ("wheelhouse", str(lock), "--output", str(alone.folder / "wheels"))
    target = ("--python", "3.11", "--platform", "x86_64-manylinux_2_31")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    assert cli(*words, "--check", "--json", expect=1).json["missing"] == ["fake-engine==1.0"]
    made = cli(*words, *target, "--json", env=offline, expect=0).json
    assert made["present"] == 1
    assert made["missing"] == []
    engine_wheel(alone.folder / "wheels", "0.9")
    pruned = cli(*words, *target, "--prune", "--json", env=offline, expect=0).json
    assert pruned["removed"] == 1
    run(cli, alone, "up")
    assert show(fresh_host, "ActiveState")["ActiveState"] == "active"


INDEX = "http://127.0.0.1:8123/simple"


def test_an_index_is_tried_before_anything_is_changed(
    cli: Cli, alone: Deployment, fresh_host: BedHost
) -> None:
    """One that does not answer, one without the package, and one that the engine comes from."""
    folder = "/tmp/glm5-index"
    page = f"{folder}/simple/fake-engine"
    alone.defaults = {"wheelhouse": None, "index_url": INDEX}
    wheel = next((alone.folder / "wheels").iterdir())
    # The machine that the hosts were made on may have settings of its own.
    fresh_host.exec(["sh", "-c", "[ ! -d /etc/uv ] || mv /etc/uv /etc/uv-away"])
    try:
        refused = run(cli, alone, "up", expect=1)
        said = " ".join(refused.output.split())
        assert f"index: {INDEX}: " in said
        assert "glm5-deploy wheelhouse" in said
        assert not exists(fresh_host, ROOT)
        fresh_host.exec(["mkdir", "-p", f"{folder}/simple"])
        fresh_host.exec(
            ["systemd-run", "--quiet", "--unit=index", "python3", "-m", "http.server",
             "--bind", "127.0.0.1", "--directory", folder, "8123"]
        )  # fmt: skip
        eventually(lambda: ":8123" in fresh_host.exec(["ss", "-Hltn"]).stdout)
        assert index_row(cli, alone, expect=1) == (
            "failed",
            f"{INDEX} has no fake-engine: HTTP 404",
        )

        fresh_host.exec(["mkdir", "-p", page])
        data = base64.b64encode(wheel.read_bytes()).decode()
        fresh_host.exec(["sh", "-c", f"base64 -d > {page}/{wheel.name}"], input=data)
        fresh_host.exec(["tee", f"{page}/index.html"], input=f'<a href="{wheel.name}">wheel</a>')
        assert index_row(cli, alone) == ("passed", f"{INDEX} answers")
        run(cli, alone, "up")
        assert show(fresh_host, "ActiveState")["ActiveState"] == "active"
    finally:
        fresh_host.exec(["systemctl", "stop", "index"], check=False)
        fresh_host.exec(["rm", "-rf", folder])
        fresh_host.exec(["sh", "-c", "[ ! -d /etc/uv-away ] || mv /etc/uv-away /etc/uv"])
    # What is installed needs no index any more.
    assert run(cli, alone, "up", "--json").json["hosts"]["node1"]["status"] == "unchanged"


def index_row(cli: Cli, alone: Deployment, expect: int = 0) -> tuple[str, str]:
    checks = run(cli, alone, "preflight", "--json", expect=expect).json["hosts"]["node1"]["checks"]
    (row,) = (row for row in checks if row["name"] == "index")
    return row["status"], row["detail"]


BASE_SITE = "/opt/their packages/site"


def own_vllm(host: BedHost, version: str = "0.26.0") -> None:
    """A vLLM that the host has already, in a folder that its interpreter does not search."""
    host.exec(["rm", "-rf", BASE_SITE])
    host.exec(["mkdir", "-p", BASE_SITE])
    wheel = engine_wheel(Path("/tmp") / f"glm5-own-{os.getpid()}", version)
    with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as archive:
        for name in archive.namelist():
            target = f"{BASE_SITE}/{name.replace('fake_engine-', 'vllm-')}"
            text = archive.read(name).decode().replace("Name: fake-engine", "Name: vllm")
            host.exec(["mkdir", "-p", str(Path(target).parent)])
            host.exec(["tee", target], input=text)
    wheel.unlink()


def test_a_host_with_its_own_vllm_gets_an_environment_on_top_of_it(
    cli: Cli, alone: Deployment, fresh_host: BedHost
) -> None:
    own_vllm(fresh_host)
    alone.profile["engine"] = {"base": {"python": "/usr/bin/python3", "site": [BASE_SITE]}}
    told = run(cli, alone, "preflight", "--json").json["hosts"]["node1"]
    rows = {row["name"]: row for row in told["checks"]}
    assert rows["base"]["status"] == "passed"
    assert "vllm 0.26.0" in rows["base"]["detail"]
    first = run(cli, alone, "up", "--json").json["hosts"]["node1"]
    assert "venv" in [change["stage"] for change in first["changes"]]
    assert show(fresh_host, "ActiveState")["ActiveState"] == "active"
    venv = fresh_host.exec(["sh", "-c", f"ls -d {ROOT}/venvs/*"]).stdout.strip()
    seen = (
        "import json, sys; from importlib.metadata import entry_points, version; "
        "names = [e.name for e in entry_points(group='console_scripts')]; "
        "print(json.dumps([version('vllm'), names, sys.prefix]))"
    )
    # Without any variable, as a worker that clears its environment would start.
    python = ["env", "-i", f"{venv}/bin/python", "-c", seen]
    version, names, prefix = json.loads(fresh_host.exec(python).stdout)
    assert (version, prefix) == ("0.26.0", venv)
    assert "vllm" in names
    again = run(cli, alone, "up", "--json").json["hosts"]["node1"]
    assert again["changes"] == []

    fresh_host.exec(["rm", "-rf", BASE_SITE])
    gone = run(cli, alone, "preflight", expect=1)
    assert f"no such folder: {BASE_SITE}" in gone.output
    alone.profile["engine"]["base"] = {"python": "/usr/bin/python3"}
    without = run(cli, alone, "preflight", expect=1)
    assert "has no vLLM" in without.output
    alone.profile["engine"]["base"] = {"python": "/usr/bin/python3.99"}
    missing = run(cli, alone, "preflight", expect=1)
    assert "is not there, or cannot be executed" in missing.output
