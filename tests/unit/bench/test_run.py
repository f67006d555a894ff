"""A host that is measured: what is refused, what is started there, what is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, cast

import pytest
from glm5_deploy.bench.plan import Wanted
from glm5_deploy.bench.run import BenchRun
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.errors import CommandFailedError, ExitCode, PreflightError
from glm5_deploy.hosts.command import Command, Secret
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.report.events import Silent
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.smoke.api import Api
from glm5_deploy.stages.record import RecordError

from tests.fakes import openai_server

KEY = Secret("s3cret")
ACTIVE = "ActiveState=active\nSubState=running\nInvocationID=abc\n"
LOAD = {
    "concurrency": 1, "prompt_tokens": 100, "output_tokens": 16, "requests": 4, "completed": 4,
    "status": "measured", "seconds": 2.0, "tokens_per_second": 32.0,
    "total_tokens_per_second": 232.0, "ttft_ms": {"median": 100.0, "p99": 110.0},
    "tpot_ms": {"median": 20.0, "p99": 22.0},
}  # fmt: skip


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.texts: list[str] = []

    def note(self, host: str, text: str) -> None:  # noqa: ARG002
        self.notes.append(text)

    def progress(self, host: str, text: str, fraction: float | None = None) -> None:  # noqa: ARG002
        self.texts.append(text)


Serve = Callable[..., tuple[Target, FakeHost]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with flags; gives a target and a host that reaches it."""
    servers = []

    def start(*flags: str, **profile: Any) -> tuple[Target, FakeHost]:  # noqa: ANN401
        server = openai_server.make_server(
            ["serve", "/models/tiny", "--port", "0", "--api-key", KEY.value, *flags]
        )
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = server.server_address
        document = {
            "name": "tiny",
            "model": {"name": "tiny", "serve": "tiny.gguf"},
            "serve": {"port": address[1], "host": "0.0.0.0", **profile.pop("serve", {})},
            **profile,
        }
        target = Target(
            name="node1", settings=HostSettings(), profile=Profile.model_validate(document)
        )
        dials = {("127.0.0.1", address[1]): lambda: socket.create_connection(address[:2])}
        return target, FakeHost(dials=dials)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def looked(unit: str = ACTIVE, release: str = "r1", jobs: str = "", **profile: Any) -> Expected:  # noqa: ANN401
    record = {"venv": "v1", "engine": {"kernel": True}, **profile}
    described = json.dumps(record) if release else ""
    parts = (f"releases/{release}\n" if release else "", described, unit, jobs)
    return Expected(
        lambda command: "list-units" in command.argv[2] and "profile.json" in command.argv[2],
        "--glm5--\n".join(parts),
    )


def job(
    *loads: dict[str, Any], started: str = "started", after: str = ACTIVE, **state: str
) -> list[Expected]:
    """The job's start, one look at its end, its unit's going, and which start of the server is at
    work then."""
    properties = {"SubState": "exited", "ActiveState": "active", "Result": "success"} | state
    head = {"vllm": "0.26.0", "seed": 1, "began": 1.0}
    lines = [f"RESULT {json.dumps(document)}" for document in (head, *loads)]
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    body = "\n".join(["PROGRESS 0.5 load 1/1", "INFO of vLLM's own", *lines])
    return [
        Expected(is_start, f"{started}\n"),
        Expected(lambda command: "--show-cursor" in command.argv[2], f"{text}\n{body}\n"),
        Expected(clears),
        Expected(lambda command: command.argv[:2] == ("systemctl", "show"), after),
    ]


def is_start(command: Command) -> bool:
    return "systemd-run" in command.argv[2]


def clears(command: Command) -> bool:
    return "reset-failed" in command.argv[2] and not is_start(command)


def bench(
    target: Target, host: FakeHost, wanted: Wanted | None = None, cancel: Cancel | None = None
) -> tuple[BenchRun, Notes]:
    notes = Notes()
    wanted = wanted or Wanted((1,), (100,), 16)
    return BenchRun(cast(Any, host), target, KEY, wanted, notes, cancel or Cancel()), notes


def started(host: FakeHost) -> tuple[str, ...]:
    """The words that the job is started with, after the script and our name."""
    return next(command.argv[4:] for command in host.commands if is_start(command))


def test_a_host_is_measured(serve: Serve) -> None:
    target, host = serve(serve={"args": {"trust_remote_code": True}})
    host.expected += [looked(), *job(LOAD)]
    run, notes = bench(target, host)
    outcome = run.run()
    assert (outcome.status, outcome.release, outcome.error) == ("unchanged", "r1", None)
    assert outcome.data["vllm"] == "0.26.0"
    assert [load["tokens_per_second"] for load in outcome.data["loads"]] == [32.0]
    said = started(host)
    assert said[0].startswith("glm5-job-bench-")
    assert {"1200", "glm5", "yes"} <= set(said)
    assert {f"/opt/glm5/releases/r1/{name}" for name in ("secrets", "environment")} <= set(said)
    words = list(said[said.index("/opt/glm5/venvs/v1/bin/python") :])
    port = target.profile.serve.port
    assert words == [
        "/opt/glm5/venvs/v1/bin/python", "/opt/glm5/lib/bench.py",
        "--url", f"http://127.0.0.1:{port}", "--model", "tiny",
        "--tokenizer", "/opt/glm5/models/tiny", "--answer", "16", "--seconds", "900",
        "--loads", "1:100:4", "--alone", "/opt/glm5/lib", "--", "--trust-remote-code",
    ]  # fmt: skip
    assert PurePosixPath("/opt/glm5/lib/bench.py") in host.files
    assert notes.texts == ["load 1/1"]
    assert notes.notes == []
    assert KEY.value not in repr(host.commands)
    host.assert_all_used()


def test_the_name_follows_from_what_is_measured(serve: Serve) -> None:
    target, host = serve()
    names = []
    for wanted, unit in (
        (Wanted((1,), (100,)), ACTIVE),
        (Wanted((1,), (100,)), ACTIVE),
        (Wanted((1,), (200,)), ACTIVE),
        (Wanted((1,), (100,)), ACTIVE.replace("abc", "def")),
    ):
        host.expected += [looked(unit), *job(LOAD, after=unit)]
        bench(target, host, wanted)[0].run()
        names.append(started(host)[0])
        host.calls.clear()
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_damaged_record_of_the_release_is_told(serve: Serve) -> None:
    target, host = serve()
    host.expected.append(looked(venv=7))
    with pytest.raises(RecordError, match=r"node1: profile.json of releases/r1 cannot be read"):
        bench(target, host)[0].run()


@pytest.mark.parametrize(
    ("look", "message", "hint"),
    [
        (looked(release=""), "nothing is deployed here", "glm5-deploy up --host node1"),
        (
            looked("ActiveState=inactive\nSubState=dead\n"),
            "glm5-tiny.service is stopped",
            "glm5-deploy up --host node1",
        ),
        (
            looked("ActiveState=activating\nSubState=auto-restart\n"),
            "glm5-tiny.service is activating (auto-restart)",
            "glm5-deploy logs --host node1 --explain",
        ),
        (
            looked(venv=None),
            "the server runs in no environment of ours, so vLLM's benchmark cannot be found",
            "deploy with engine.lock or engine.base",
        ),
        (
            looked(jobs="glm5-job-bench-0.service\n"),
            "another benchmark runs here: glm5-job-bench-0",
            "wait for it, or end it on the host: systemctl stop glm5-job-bench-0",
        ),
    ],
)
def test_what_is_refused_early(look: Expected, message: str, hint: str, serve: Serve) -> None:
    target, host = serve()
    host.expected.append(look)
    with pytest.raises(PreflightError) as refused:
        bench(target, host)[0].run()
    assert (refused.value.message, refused.value.hint) == (message, hint)
    assert not [command for command in host.commands if is_start(command)]
    assert host.files == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fault", "unhealthy"], "the server is not healthy: /health answers 503"),
        (["--fault", "refuse-all"], "the server refuses the key: HTTP 401"),
        (["--fault", "wrong-model"], "the server serves another-model, not tiny"),
        (["--fault", "html"], "the server does not answer: no JSON"),
        (["--max-model-len", "90"], "do not fit into the 90 tokens"),
    ],
)
def test_servers_that_are_refused(flags: list[str], message: str, serve: Serve) -> None:
    target, host = serve(*flags)
    host.expected.append(looked())
    with pytest.raises(PreflightError, match=message) as refused:
        bench(target, host)[0].run()
    assert refused.value.hint


def test_a_server_of_another_kind_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    target, host = serve()
    host.expected.append(looked())
    monkeypatch.setattr(Api, "get", lambda *_: {"data": 5})
    with pytest.raises(PreflightError, match="no list of objects as data in"):
        bench(target, host)[0].run()


def test_a_server_that_does_not_listen_is_refused(serve: Serve) -> None:
    target, host = serve()
    host.dials.clear()
    host.expected.append(looked())
    with pytest.raises(PreflightError, match="does not answer") as refused:
        bench(target, host)[0].run()
    assert "loading" in str(refused.value.hint)


def test_an_earlier_one_is_joined_or_its_results_are_taken(serve: Serve) -> None:
    for word, said in (("joined", "joined"), ("collected", "took what")):
        target, host = serve()
        host.expected += [looked(), *job(LOAD, started=word)]
        run, notes = bench(target, host)
        assert run.run().status == "unchanged"
        assert notes.notes[0].startswith(said)


@pytest.mark.parametrize("argument", [{"max-num-seqs": 4}, {"max_num_seqs": "4"}])
def test_what_the_server_cannot_do_at_once_is_told(
    argument: dict[str, object], serve: Serve
) -> None:
    target, host = serve(serve={"args": argument})
    host.expected += [looked(), *job(LOAD)]
    run, notes = bench(target, host, Wanted((16, 2), (100,)))
    run.run()
    assert notes.notes == ["of 16 requests at once 4 are worked on (max-num-seqs): the others wait"]


STOPPED = LOAD | {"status": "stopped", "error": "late"}
del STOPPED["ttft_ms"]


@pytest.mark.parametrize(
    ("loads", "smoke", "code", "message"),
    [
        ([LOAD], {"min_tokens_per_second": 49}, ExitCode.DONE, ""),
        ([LOAD], {"min_tokens_per_second": 51}, ExitCode.SMOKE_FAILED, "slower than the profile"),
        ([LOAD, STOPPED], {}, ExitCode.DONE, ""),
        ([STOPPED], {}, ExitCode.HOST_FAILED, "nothing was measured"),
        ([], {}, ExitCode.HOST_FAILED, "nothing was measured"),
        (
            [LOAD, LOAD | {"status": "failed", "error": "2 of 4 failed"}],
            {"min_tokens_per_second": 51},
            ExitCode.HOST_FAILED,
            "requests failed: 1 × 100",
        ),
    ],
)
def test_exit_codes(
    loads: list[dict[str, Any]], smoke: dict[str, Any], code: ExitCode, message: str, serve: Serve
) -> None:
    target, host = serve(smoke=smoke)
    host.expected += [looked(), *job(*loads)]
    outcome = bench(target, host)[0].run()
    assert outcome.exit_code is code
    assert (outcome.error is not None) == bool(message)
    assert message in (outcome.error.message if outcome.error else "")
    assert len(outcome.data["loads"]) == len(loads)


def test_a_unit_that_the_other_follower_cleared_away_is_no_failure(serve: Serve) -> None:
    target, host = serve()
    gone = {"LoadState": "not-found", "SubState": "dead", "ActiveState": "inactive"}
    host.expected += [looked(), *job(LOAD, started="joined", **gone)]
    assert bench(target, host)[0].run().status == "unchanged"
    target, host = serve()
    host.expected += [looked(), *job(LOAD, started="joined", **gone)]
    with pytest.raises(CommandFailedError, match="is gone"):
        bench(target, host, Wanted((1, 2), (100,), 16))[0].run()


@pytest.mark.parametrize(
    "after", [ACTIVE.replace("abc", "def"), ACTIVE.replace("active", "activating", 1), "\n"]
)
def test_figures_of_two_servers_are_no_success(after: str, serve: Serve) -> None:
    target, host = serve()
    host.expected += [looked(), *job(LOAD, after=after)]
    outcome = bench(target, host)[0].run()
    assert outcome.exit_code is ExitCode.HOST_FAILED
    assert outcome.error is not None
    assert outcome.error.message.startswith("the server ended or was started again")
    assert len(outcome.data["loads"]) == 1


def test_ctrl_c_ends_it_on_the_host(serve: Serve) -> None:
    target, host = serve()
    cancel = Cancel()
    host.expected += [looked(), job()[0], Expected(clears)]
    run, _ = bench(target, host, cancel=cancel)
    put = host.put
    host.put = lambda *words, **more: (put(*words, **more), cancel.set())[0]  # type: ignore[method-assign]
    with pytest.raises(InterruptedRunError):
        run.run()
    assert host.commands[-1].argv[-1] == started(host)[0]
    assert host.calls[-1].sudo
