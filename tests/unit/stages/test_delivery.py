"""Plans of engines that are layered on a host's own, and of models that come in other ways."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.facts.base import BaseFacts, parse_base
from glm5_deploy.hosts.facts.fact import FactOutput
from glm5_deploy.locks.text import Recipe, compose
from glm5_deploy.stages import base as base_rows
from glm5_deploy.stages import lock as lock_rows
from glm5_deploy.stages import model
from glm5_deploy.stages.change import Copy, Put, Transient
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.manifest import wanted_manifest
from glm5_deploy.stages.plan import plan
from glm5_deploy.stages.venv import plan as venv_plan

from tests.unit.stages.situation import MANIFEST, bare, changed, complete, desired, system

BASE = {"python": "/opt/torch/bin/python3", "site": ["/opt/site"]}
FOUND = BaseFacts((3, 12, 4), True, {"vllm": "0.26.0", "torch": "2.11.0"}, {}, ())


def layered(**more: Any) -> Desired:  # noqa: ANN401
    command = ["{venv}/bin/vllm", "serve", "{model}"]
    return desired(engine={"base": BASE, "kernel": True, "command": command, **more})


def test_only_our_wheel_is_installed_on_top_of_a_base() -> None:
    want = layered()
    assert want.venv is not None
    (change,) = venv_plan(want, bare())
    job = change.steps[-1]
    assert isinstance(job, Transient)
    words = job.command.argv
    assert words[0] == BASE["python"]
    assert words[1].endswith("layer_venv.py")
    assert words[-1] == "/opt/site"
    installs = [c for c in plan(want, bare()) if c.stage == "kernel" and c.action == "install"]
    assert len(installs) == 1
    assert "/opt/site" in want.release.files[0].content or want.release.text("unit")
    assert plan(want, complete(want)) == []


def test_a_base_names_its_environment() -> None:
    names = {
        layered().venv.identifier,  # type: ignore[union-attr]
        layered(kernel=False).venv.identifier,  # type: ignore[union-attr]
        layered(base={**BASE, "site": []}).venv.identifier,  # type: ignore[union-attr]
        layered(base={**BASE, "python": "/opt/other/bin/python3"}).venv.identifier,  # type: ignore[union-attr]
    }
    assert len(names) == 4
    assert layered().venv.identifier in names  # type: ignore[union-attr]


def test_a_base_below_home_can_be_read_by_the_service() -> None:
    inside = layered(base={"python": "/home/ann/venv/bin/python"})
    assert "ProtectHome=read-only" in inside.release.text("unit")
    assert "ProtectHome=yes" in layered().release.text("unit")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (BaseFacts(problem="it is not there"), "it is not there"),
        (replace(FOUND, version=(3, 7, 1)), "is Python 3.7.1"),
        (replace(FOUND, absent=("/opt/site",)), "no such folder: /opt/site"),
        (replace(FOUND, versions={"torch": "2.11.0"}), "has no vLLM"),
        (replace(FOUND, headers=False), "lacks its C headers"),
    ],
)
def test_a_base_that_will_not_do(facts: BaseFacts, said: str) -> None:
    (row,) = base_rows.rows(layered(), replace(bare(), base=facts))
    assert row.status == "failed"
    assert said in row.detail
    assert row.hint


def test_a_base_that_will_do() -> None:
    (row,) = base_rows.rows(layered(), replace(bare(), base=FOUND))
    assert row.status == "passed"
    assert "torch 2.11.0, vllm 0.26.0" in row.detail
    assert base_rows.rows(desired(), bare()) == ()


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (FactOutput(45, "", ""), "it is not there, or cannot be executed"),
        (FactOutput(124, "", ""), "it does not answer in time"),
        (FactOutput(1, "", "boom\nImportError: x\n"), "ImportError: x"),
        (FactOutput(0, "no json", ""), "no json"),
    ],
)
def test_what_a_base_says_when_it_is_broken(output: FactOutput, problem: str) -> None:
    assert parse_base(output).problem == problem


def test_this_interpreter_can_be_asked(tmp_path: Path) -> None:
    """The real program, on packages that lie in a folder of their own."""
    from glm5_deploy.hosts.facts.base import base_fact

    info = tmp_path / "vllm-0.26.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    absent = tmp_path / "absent"
    paths = [PurePosixPath(path) for path in (tmp_path, absent)]
    fact = base_fact(PurePosixPath(sys.executable), paths)
    done = subprocess.run(
        ["sh", "-c", fact.command.shell()], capture_output=True, text=True, check=False
    )
    found = fact.parse(FactOutput(done.returncode, done.stdout, done.stderr))
    assert found.problem is None
    assert found.version == sys.version_info[:3]
    assert found.versions is not None
    assert found.versions["vllm"] == "0.26.0"
    assert found.absent == (str(absent),)


# --- the lock and its wheels ---------------------------------------------------------------------

RECIPE = Recipe(("x==1",), "3.11", "x86_64-manylinux_2_31", "2026-11-25")


def locked(tmp_path: Path, **settings: str) -> Desired:
    path = tmp_path / "engine.txt"
    path.write_text(compose(["# x"], RECIPE, "x==1 --hash=sha256:00\n"))
    return desired(path, settings)


def test_a_lock_for_another_python_or_a_newer_libc(tmp_path: Path) -> None:
    old = replace(bare(), system=system(machine=replace(system().machine, libc=(2, 28))))
    (row,) = lock_rows.rows(locked(tmp_path), old)
    assert "glibc 2.28 here, engine.txt needs 2.31" in row.detail
    (row,) = lock_rows.rows(locked(tmp_path), bare())
    assert row.status == "passed"
    want = locked(tmp_path)
    assert want.venv is not None
    other = replace(want, venv=replace(want.venv, python="3.12"))
    (row,) = lock_rows.rows(other, bare())
    assert "is for Python 3.11, engine.python is 3.12" in row.detail
    built = changed(bare(), venvs=(want.venv.identifier,))
    assert lock_rows.rows(want, built) == ()


def test_a_wheelhouse_that_is_not_complete(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (row,) = lock_rows.rows(locked(tmp_path, wheelhouse=str(folder)), bare())
    assert row.status == "failed"
    assert "lacks x==1" in row.detail
    assert row.hint == f"run `glm5-deploy wheelhouse {tmp_path}/engine.txt --output {folder}`"


# --- models --------------------------------------------------------------------------------------


def from_elsewhere(**spec: Any) -> Desired:  # noqa: ANN401
    """A model that is not sent from here, so that no manifest is known beforehand."""
    return replace(desired(model={"name": "tiny", **spec}), manifest=None)


def model_plan(want: Desired, observed: Any) -> Any:  # noqa: ANN401
    (change,) = model.plan(want, observed)
    return change


def test_files_come_from_another_host_and_are_verified() -> None:
    want = from_elsewhere(source_host="bw0", source_address="10.0.0.1:2222")
    change = model_plan(want, bare())
    copy, verify = change.steps
    assert isinstance(copy, Copy)
    assert (copy.peer, copy.address, copy.checksum) == ("bw0", "10.0.0.1:2222", False)
    assert isinstance(verify, Transient)
    assert "--create" not in verify.command.argv
    whole = complete(want)
    assert model.plan(want, whole) == []
    touched = changed(whole, model_stamp=None)
    assert model_plan(want, touched).steps[0].checksum
    gone = changed(whole, model_files={})
    assert model_plan(want, gone).detail == "2 files"


def test_a_command_runs_as_the_login_user_with_secrets_from_a_file() -> None:
    want = from_elsewhere(
        fetch=["/usr/bin/hf", "download", "--local-dir", "{folder}"],
        fetch_environment={"HF_HUB_ENABLE_HF_TRANSFER": "0"},
        fetch_secrets={"HF_TOKEN": "${env:HF_TOKEN}"},
    )
    want = replace(want, fetch_secrets={"HF_TOKEN": Secret("s3cret")})
    change = model_plan(want, bare())
    put, job, verify = change.steps
    assert isinstance(put, Put)
    assert put.mode == 0o600
    assert isinstance(put.content, Secret)
    assert isinstance(job, Transient)
    assert job.user == "root"
    assert job.secrets == put.path
    assert "s3cret" not in " ".join(job.command.words())
    assert "HF_HUB_ENABLE_HF_TRANSFER=0" in job.command.words()
    assert str(want.paths.model) in job.command.argv
    assert job.hidden == (Secret("s3cret"),)
    assert "--create" in verify.command.argv
    assert model.plan(want, complete(want)) == []


def test_another_command_is_another_job() -> None:
    names = {
        model_plan(from_elsewhere(fetch=["/bin/get", word]), bare()).steps[0].unit
        for word in ("a", "b")
    }
    assert len(names) == 2


def test_a_manifest_that_is_not_the_signed_one_counts_for_nothing(tmp_path: Path) -> None:
    right, wrong = MANIFEST.key(), "0" * 64
    want = from_elsewhere(fetch=["/bin/get"], manifest_sha256=right)
    assert model.plan(want, complete(want)) == []
    other = from_elsewhere(fetch=["/bin/get"], manifest_sha256=wrong)
    change = model_plan(other, complete(other))
    assert change.action == "sync"
    assert change.steps[-1].command.argv[-2:] == ("--signed", wrong)
    lying = from_elsewhere(manifest_sha256=wrong)
    assert model_plan(lying, complete(lying)).detail == "the manifest there is not the signed one"
    file = tmp_path / "MANIFEST"
    file.write_text(MANIFEST.text())
    assert wanted_manifest(None, file, tmp_path / "c", right) == replace(MANIFEST, sizes={})
    with pytest.raises(UsageError, match=right):
        wanted_manifest(None, file, tmp_path / "c", wrong)


# --- the programs on the host --------------------------------------------------------------------

PROGRAMS = Path(model.__file__).parents[1] / "onhost"


def deliver(folder: Path, again: str, *argv: str) -> subprocess.CompletedProcess[str]:
    program = str(PROGRAMS / "deliver.py")
    return subprocess.run(
        [sys.executable, program, str(folder), "0", again, "--", *argv],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_delivery_passes_on_what_the_command_says(tmp_path: Path) -> None:
    done = deliver(tmp_path / "m", "", "sh", "-c", "echo hello; printf '\\r10%%\\r20%%'; exit 3")
    assert done.returncode == 1
    assert "hello" in done.stdout
    assert "PROGRESS - 10%" in done.stdout
    assert "sh ended with status 3" in done.stderr
    missing = deliver(tmp_path / "m", "", "/no/such/program")
    assert "cannot run /no/such/program" in missing.stderr


def test_a_broken_connection_is_tried_again_while_it_gets_on(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    script = 'n=$(ls | wc -l); head -c 9000 /dev/urandom > "$n"; [ "$n" -ge 1 ] || exit 12'
    done = deliver(folder, "12", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(folder)) == ["0", "1"]


class _Quiet:
    """Events that nobody sees."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return lambda *_: None


QUIET: Any = _Quiet()

# --- the commands --------------------------------------------------------------------------------


def test_a_command_of_the_environment_has_it_built_first_and_no_doctor_asked(
    tmp_path: Path,
) -> None:
    from glm5_deploy.hosts.fake import FakeHost
    from glm5_deploy.run.cancel import Cancel
    from glm5_deploy.run.model import ModelRun

    lock = tmp_path / "engine.txt"
    lock.write_text("x==1 --hash=sha256:00\n")
    spec = {"name": "tiny", "fetch": ["{venv}/bin/hf", "download", "{folder}"]}
    want = replace(
        desired(lock, model=spec, engine={"python": "3.11", "kernel": True}), manifest=None
    )
    run = ModelRun(FakeHost(), want, QUIET, Cancel())
    changes = run._delivery(bare(), again=False)
    told = [f"{change.stage} {change.action}" for change in changes]
    assert told[-3:] == ["venv create", "kernel install", "model sync"]
    assert "kernel verify" not in told
    assert want.venv is not None
    job = changes[-1].steps[0]
    assert isinstance(job, Transient)
    assert f"/opt/glm5/venvs/{want.venv.identifier}/bin/hf" in job.command.argv
    whole = complete(want)
    assert run._delivery(whole, again=False) == []
    assert [change.stage for change in run._delivery(whole, again=True)] == ["model"]


def test_sync_wants_to_know_where_from() -> None:
    from glm5_deploy.hosts.fake import FakeHost
    from glm5_deploy.run.cancel import Cancel
    from glm5_deploy.run.model import ModelRun

    run = ModelRun(FakeHost(), from_elsewhere(), QUIET, Cancel())
    with pytest.raises(UsageError, match="does not say where its model comes from"):
        run.sync(again=False)
