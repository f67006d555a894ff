"""The doctor before a switch: when it is asked, how it is called, and what its answer leads to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from glm5_deploy.errors import CommandFailedError
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.hosts.sandbox import variables, variables_of
from glm5_deploy.kernel_doctor import doctor_command, parse_diagnosis
from glm5_deploy.report.events import Silent
from glm5_deploy.report.outcome import DoctorChecksError, HostOutcome
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.session import guarded
from glm5_deploy.run.steps import Executor
from glm5_deploy.stages import kernel
from glm5_deploy.stages.change import Change, Examine
from glm5_deploy.stages.desired import Desired

from tests.fakes import doctor as fakes
from tests.unit.stages.situation import bare, changed, complete, desired

VENV = PurePosixPath("/opt/glm5/venvs/v1")


@pytest.fixture
def wanted(tmp_path: Path) -> Callable[..., Desired]:
    lock = tmp_path / "engine.txt"
    lock.write_text("engine==1.0 --hash=sha256:00\n")

    def make(*, kernel: bool = True, **more: Any) -> Desired:  # noqa: ANN401
        return desired(lock, engine={"python": "3.11", "kernel": kernel}, **more)

    return make


def lines(changes: list[Change]) -> list[str]:
    return [f"{change.action} {change.target}" for change in changes]


def test_it_follows_the_installation(wanted: Callable[..., Desired]) -> None:
    assert lines(kernel.plan(wanted(), bare())) == ["install situation.py", "verify doctor"]


def test_a_host_that_is_as_wanted_is_not_examined(wanted: Callable[..., Desired]) -> None:
    assert kernel.plan(wanted(), complete(wanted())) == []


def test_every_new_release_is_examined(wanted: Callable[..., Desired]) -> None:
    new = wanted(environment={"GLM5_INDEXER": "triton"})
    observed = changed(complete(new), current="older")
    assert lines(kernel.plan(new, observed)) == ["verify doctor"]


def test_one_that_was_refused_is_examined_again(wanted: Callable[..., Desired]) -> None:
    """The environment and the release lie there complete, but nothing was switched."""
    new = wanted()
    assert lines(kernel.plan(new, changed(complete(new), current=None))) == ["verify doctor"]


def test_without_the_kernel_there_is_no_doctor(wanted: Callable[..., Desired]) -> None:
    assert kernel.plan(wanted(kernel=False), bare()) == []


def test_it_runs_as_the_server_would(wanted: Callable[..., Desired]) -> None:
    new = wanted(
        environment={"GLM5_INDEXER": "triton", "NOTE": "two words, $HOME"}, gpus={"count": 2}
    )
    step = kernel.plan(new, bare())[-1].steps[0]
    assert isinstance(step, Examine)
    argv = step.command.argv
    options, program = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert new.venv is not None
    python = f"/opt/glm5/venvs/{new.venv.identifier}/bin/python"
    assert program == (python, "-m", "glm5_kernel", "doctor", "--json", "--timeout", "240")
    for word in (
        "User=glm5", "CacheDirectory=glm5-tiny", "NoNewPrivileges=yes", "ProtectSystem=strict",
        "DeviceAllow=char-nvidia rw", "DeviceAllow=char-nvidia-uvm rw", "RuntimeMaxSec=300",
        "--setenv=CUDA_VISIBLE_DEVICES=0,1", "--setenv=GLM5_INDEXER=triton",
        "--setenv=NOTE=two words, $HOME",
        "--setenv=TRITON_CACHE_DIR=/var/cache/glm5-tiny/triton",
    ):  # fmt: skip
        assert word in options
    assert "s3cret" not in step.command.shell()


def test_what_would_harm_the_running_server_is_left_out() -> None:
    argv = doctor_command(VENV, fakes.UNIT, variables_of(PurePosixPath("/r/environment"))).argv
    names = {word.partition("=")[0] for before, word in itertools.pairwise(argv)
             if before == "-p"}  # fmt: skip
    assert names == {
        "RuntimeMaxSec", "OOMScoreAdjust", "User", "CacheDirectory", "DeviceAllow",
        "EnvironmentFile",
    }  # fmt: skip
    assert "OOMScoreAdjust=1000" in argv
    assert "EnvironmentFile=/r/environment" in argv
    assert not any("secrets" in word for word in argv)


def test_dollars_in_the_path_stay_dollars() -> None:
    venv = PurePosixPath("/srv/$x/venvs/v1")
    assert "/srv/$$x/venvs/v1/bin/python" in doctor_command(venv, fakes.UNIT, variables({})).argv


def carry_out(answer: str, returncode: int = 0) -> HostOutcome:
    """What becomes of a host whose doctor answers so."""
    host = FakeHost(expected=[Expected("systemd-run", answer, "uv says hello", returncode)])
    executor = Executor(host, Silent(), Cancel())
    step = Examine(doctor_command(VENV, fakes.UNIT, variables({})), 300)

    def work() -> HostOutcome:
        executor.apply(Change("kernel", "verify", "doctor", steps=(step,)))
        return HostOutcome("node1", "changed")

    outcome = guarded("node1", work)
    assert host.calls[0].sudo
    return outcome


def test_a_good_answer_goes_on() -> None:
    assert carry_out(fakes.document()).status == "changed"


def test_skipped_rows_go_on() -> None:
    full = fakes.row("merge", "skipped", "GPU memory is full")
    assert carry_out(fakes.document(full)).status == "changed"


def test_a_failed_row_refuses_with_all_rows_and_hints() -> None:
    answer = fakes.document(
        fakes.row("vLLM", detail="0.26.0"),
        fakes.row("C compiler", "failed", "there is no gcc", "install one"),
        fakes.row("merge", "failed", "error 3e-01, limit 1e-02", "report this"),
    )
    outcome = carry_out(answer, returncode=1)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert [check.status for check in outcome.checks] == ["passed", "failed", "failed"]
    assert outcome.error is not None
    assert outcome.error.message == (
        "the kernel doctor refuses this host; nothing was switched\n"
        "    C compiler: there is no gcc\n    merge: error 3e-01, limit 1e-02"
    )
    assert outcome.error.hint == "install one; report this"


def test_the_refusal_names_the_host() -> None:
    checks = parse_diagnosis(fakes.document(fakes.row("merge", "failed", "x", "y"))).checks
    assert str(DoctorChecksError("bw1", checks)).startswith("bw1: the kernel doctor refuses")


@pytest.mark.parametrize("answer", ["", "No module named glm5_kernel", "[]", "{}", '{"checks": 1}'])
def test_no_answer_is_an_error(answer: str) -> None:
    outcome = carry_out(answer, returncode=1)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.message == "the doctor gave no answer (status 1): uv says hello"
    assert outcome.error.hint == (
        "glm5-kernel and glm5-deploy must be of the same version; `up` installs it"
    )


def test_errors_of_the_parser_are_value_errors() -> None:
    with pytest.raises(ValueError, match="not a document"):
        parse_diagnosis('{"versions": {}}')
    assert CommandFailedError("x").exit_code == 1
