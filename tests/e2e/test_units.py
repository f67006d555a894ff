"""What we write for systemd means to systemd what we meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.hosts.command import Secret
from glm5_deploy.stages.desired import build_desired
from glm5_deploy.stages.systemd import environment_file, exec_line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e import sandbox_probe

MAX_EXPOSURE = 1.6
DUMP = (
    "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('/run/dump.json', 'w'))"
)

arguments = st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30
)
values = st.text(
    alphabet=st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=30
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(arguments, min_size=20, max_size=40), st.lists(values, min_size=20, max_size=40))
def test_any_text_survives_a_real_unit(bed: Bed, words: list[str], texts: list[str]) -> None:
    host = bed.hosts["node1"]
    environment = {f"V{number}": text for number, text in enumerate(texts)}
    unit = "[Service]\nType=oneshot\nEnvironmentFile=/run/dump.env\n"
    unit += f"ExecStart={exec_line(['/usr/bin/python3', '-c', DUMP, *words])}\n"
    host.exec(["tee", "/run/systemd/system/dump.service"], input=unit)
    host.exec(["tee", "/run/dump.env"], input=environment_file(environment))
    host.exec(["systemctl", "daemon-reload"])
    host.exec(["systemctl", "start", "dump.service"])
    got_words, got_environment = json.loads(host.exec(["cat", "/run/dump.json"]).stdout)
    assert got_words == words
    assert {name: got_environment.get(name) for name in environment} == environment


def rendered(gpus: int) -> str:
    profile = Profile.model_validate(
        {"name": "m", "model": {"name": "m"}, "gpus": {"count": gpus},
         "engine": {"command": ["/usr/bin/python3", "{model}"]}}
    )  # fmt: skip
    target = Target(name="h", settings=HostSettings(), profile=profile)
    made = build_desired(
        target,
        resolve_secret=lambda _: Secret(""),
        kernel_wheel=lambda: Path("none"),
        manifest=lambda _: None,
    )
    return made.release.text("unit")


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_unit_is_hardened(bed: Bed, gpus: int) -> None:
    host: BedHost = bed.hosts["node1"]
    path = "/run/glm5-exposure.service"
    host.exec(["tee", path], input=rendered(gpus))
    said = host.exec(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", path], check=False
    )
    last = said.stdout.strip().splitlines()[-1]
    assert float(last.split(":")[1].split()[0]) <= MAX_EXPOSURE, said.stdout


@pytest.mark.parametrize("gpus", [0, 8])
def test_systemd_has_nothing_against_the_unit(bed: Bed, gpus: int) -> None:
    host: BedHost = bed.hosts["node1"]
    path = "/run/glm5-verify.service"
    host.exec(["useradd", "--system", "glm5"], check=False)
    host.exec(["tee", path], input=rendered(gpus))
    said = host.exec(["systemd-analyze", "verify", "--man=no", path], check=False)
    assert "glm5-verify" not in said.stderr + said.stdout, said.stderr


def test_the_sandbox_lets_workers_talk_and_bars_the_rest(bed: Bed) -> None:
    """What NCCL, CUDA's IPC and vLLM's queues do between processes, without a GPU."""
    host, place = bed.hosts["node1"], "/usr/local/lib/glm5-probe.py"
    host.exec(["useradd", "--system", "glm5"], check=False)
    host.exec(["tee", place], input=Path(sandbox_probe.__file__).read_text())
    kept = [
        line for line in rendered(8).splitlines()
        if line.partition("=")[0] not in {"EnvironmentFile", "ExecStart", "Restart", "Type"}
    ]  # fmt: skip
    at = kept.index("[Service]") + 1
    kept[at:at] = ["Type=oneshot", f"ExecStart=/usr/bin/python3 {place}",
                   "StandardOutput=truncate:/run/glm5-probe.json"]  # fmt: skip
    host.exec(["tee", "/run/systemd/system/glm5-probe.service"], input="\n".join(kept) + "\n")
    host.exec(["systemctl", "daemon-reload"])
    host.exec(["systemctl", "start", "glm5-probe.service"])
    found = json.loads(host.exec(["cat", "/run/glm5-probe.json"]).stdout)
    needed = {each.__name__ for each in sandbox_probe.NEEDED}
    assert {name: said for name, said in found.items() if name in needed} == dict.fromkeys(
        needed, "works"
    )
    assert found["ptrace"] == found["pidfd_getfd"] == found["mounting"] == "SIGSYS"
    for name, error in (
        ("packets", "Address family not supported"),
        ("namespaces", "Operation not permitted"),
        ("writing", "Read-only file system"),
    ):
        assert error in found[name]
