"""vLLM's word before a running server is stopped: when it is asked, how, and what follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from glm5_deploy.errors import CommandFailedError, PreflightError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.rehearsal import parse_answer
from glm5_deploy.report.events import Silent
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.steps import Executor
from glm5_deploy.stages.change import Change, Rehearse
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.plan import plan

from tests.unit.stages.situation import bare, changed, complete, desired, unit

KNOWN = ("max-model-len", "kv-cache-dtype", "attention-backend")
STOPPED = unit(LoadState="loaded", ActiveState="inactive", UnitFileState="enabled")


@pytest.fixture
def wanted(tmp_path: Path) -> Callable[..., Desired]:
    lock = tmp_path / "engine.txt"
    lock.write_text("engine==1.0 --hash=sha256:00\n")
    return lambda **more: desired(lock, **more)


def rehearsals(wanted: Desired, observed: Observed) -> list[Change]:
    return [change for change in plan(wanted, observed) if change.target == "arguments"]


def test_before_a_running_server_is_stopped(wanted: Callable[..., Desired]) -> None:
    new = wanted()
    changes = plan(new, changed(complete(new), current="older"))
    assert [(c.stage, c.action) for c in changes] == [("release", "verify"), ("service", "switch")]


@pytest.mark.parametrize("observed", ["bare", "as wanted", "stopped"])
def test_not_where_nothing_is_stopped(wanted: Callable[..., Desired], observed: str) -> None:
    new = wanted()
    stopped = replace(changed(complete(new), current="older"), unit=STOPPED)
    situation = {"bare": bare(), "as wanted": complete(new), "stopped": stopped}[observed]
    assert rehearsals(new, situation) == []


@pytest.mark.parametrize(
    "command",
    [
        ["{python}", "/srv/serve.py", "{model}"],
        ["/opt/llama/bin/llama-server"],
        ["/opt/other/bin/vllm", "serve", "{model}"],
    ],
)
def test_not_of_another_engine(wanted: Callable[..., Desired], command: list[str]) -> None:
    new = wanted(engine={"python": "3.11", "command": command})
    assert rehearsals(new, changed(complete(new), current="older")) == []


def test_not_where_the_profile_leaves_it_out(wanted: Callable[..., Desired]) -> None:
    new = wanted(limits={"rehearsal": 0})
    assert rehearsals(new, changed(complete(new), current="older")) == []
    assert new.release.identifier == wanted().release.identifier


def test_not_as_another_user_than_the_running_server_s(wanted: Callable[..., Desired]) -> None:
    before, new = wanted(), wanted(unit={"user": "other"})
    assert rehearsals(new, changed(complete(before), current="older")) == []
    same = wanted(unit={"nofile": 4096})
    assert len(rehearsals(same, changed(complete(before), current="older"))) == 1


def test_it_is_asked_as_the_server_would_be(wanted: Callable[..., Desired]) -> None:
    new = wanted(serve={"args": {"max_model_len": 4096, "note": "a $HOME b"}})
    (change,) = rehearsals(new, changed(complete(new), current="older"))
    (step,) = change.steps
    assert isinstance(step, Rehearse)
    argv = step.command.argv
    options, program = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert new.venv is not None
    assert program[:2] == (
        f"/opt/glm5/venvs/{new.venv.identifier}/bin/python", "/opt/glm5/lib/rehearse.py",
    )  # fmt: skip
    assert program[2:5] == ("--", "serve", "/opt/glm5/models/tiny")
    assert program[-4:] == ("--max_model_len", "4096", "--note", "a $$HOME b")
    assert step.known == ("max-model-len", "note")
    folder = f"/opt/glm5/releases/{new.release.identifier}"
    for word in (
        "User=glm5", "ProtectSystem=strict", "WorkingDirectory=/var/lib/glm5-tiny",
        f"EnvironmentFile={folder}/environment", f"EnvironmentFile={folder}/secrets",
        "RuntimeMaxSec=300",
    ):  # fmt: skip
        assert word in options
    assert not any("s3cret" in word for word in argv)
    assert step.hidden == (Secret("s3cret"),)


def carry_out(output: str, returncode: int = 0, stderr: str = "") -> None:
    host = FakeHost(expected=[Expected("systemd-run", output, stderr, returncode)])
    step = Rehearse(_command(), 300, KNOWN, (Secret('s3cr"et'),))
    Executor(host, Silent(), Cancel()).apply(Change("release", "verify", "arguments", "", (step,)))
    assert host.calls[0].sudo


def _command() -> Any:  # noqa: ANN401
    from glm5_deploy.hosts.command import command

    return command("systemd-run")


def answer(status: str, detail: str) -> str:
    said = json.dumps({"status": status, "detail": detail})
    return f"INFO vLLM says hello\n\nREHEARSAL {said}\nand goodbye\n"


@pytest.mark.parametrize("status", ["passed", "skipped"])
def test_it_goes_on(status: str) -> None:
    carry_out(answer(status, "vLLM 0.26.0 takes them"))


@pytest.mark.parametrize(
    ("detail", "hint"),
    [
        ("argument --kv-cache-dtype: invalid choice: 'fp9'", "serve.args.kv-cache-dtype"),
        ("unrecognized arguments: --max-model-len x", "serve.args.max-model-len"),
        ("User-specified max_model_len (9) is greater than --max-model-len", "max-model-len"),
        ("No valid attention backend found for cuda with", "engine.kernel"),
        ("something new", "limits.rehearsal: 0"),
    ],
)
def test_a_refusal_ends_the_run(detail: str, hint: str) -> None:
    with pytest.raises(PreflightError, match="nothing was switched") as caught:
        carry_out(answer("failed", detail))
    assert f"\n    {detail}" in caught.value.message
    assert hint in (caught.value.hint or "")


def test_secrets_show_nowhere_whatever_vllm_says() -> None:
    with pytest.raises(PreflightError, match=r"\n    401: \*{8} is no key") as refused:
        carry_out(answer("failed", '401: s3cr"et is no key'))
    with pytest.raises(CommandFailedError, match=r"status 1\): no \*{8}") as failed:
        carry_out("", 1, 'no s3cr"et')
    assert not any("s3cr" in str(each.value) for each in (refused, failed))


def test_a_long_refusal_is_cut() -> None:
    with pytest.raises(PreflightError) as caught:
        carry_out(answer("failed", "\n".join(f"line {number}" for number in range(40))))
    assert caught.value.message.endswith("    line 11\n    …")


@pytest.mark.parametrize(
    "output",
    ["", "REHEARSAL [1]", 'REHEARSAL {"status": "fine", "detail": ""}', "REHEARSAL", "Killed"],
)
def test_no_answer_is_a_failure(output: str) -> None:
    assert parse_answer(output, ()) is None
    with pytest.raises(CommandFailedError, match=r"status 137\): it ran out of memory"):
        carry_out(output, 137, "it ran out of memory")
