"""Each known failure is found in the lines that show it, and in no ordinary line."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import yaml
from glm5_deploy.logs.explain import Explainer, explain, explain_timed, known_failures
from glm5_deploy.logs.progress import parse_progress
from glm5_deploy.logs.show import print_explanation
from rich.console import Console

HERE = Path(__file__).parent
SHOWN: dict[str, list[str]] = yaml.safe_load((HERE / "failures.yml").read_text())
PROGRESS: list[tuple[str, str | None, float | None]] = yaml.safe_load(
    (HERE / "progress.yml").read_text()
)


@pytest.mark.parametrize(
    ("name", "line"), [(n, line) for n, many in SHOWN.items() for line in many]
)
def test_line_is_explained(name: str, line: str) -> None:
    *before, last = line.split(" || ")
    found = explain([*before, last])
    assert [(each.name, each.line) for each in found] == [(name, last)]


@pytest.mark.parametrize(
    "prefix",
    [
        "(Worker_TP3 pid=4103) ERROR 11-30 01:02:03 [multiproc_executor.py:870] ",
        "\x1b[1;36m(Worker_TP0 pid=4100)\x1b[0;0m ",
    ],
)
def test_lines_of_workers_are_explained_too(prefix: str) -> None:
    """Each with its worker's name before it, and those of others in between."""
    for name, many in SHOWN.items():
        for line in many:
            parts = [f"{prefix}{part}" for part in line.split(" || ")]
            between = [each for part in parts for each in ("(Worker_TP7 pid=9) INFO loading", part)]
            assert [found.name for found in explain(between)] == [name]


def test_what_an_earlier_start_said_counts_for_it_alone() -> None:
    start = "(EngineCore pid=2) INFO [core.py:97] Initializing a V1 LLM engine (v0.26.0)"
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    names = [each.name for each in explain(["Capturing CUDA graphs: 0%", start, memory])]
    assert names == ["gpu-out-of-memory"]
    names = [each.name for each in explain([start, "Capturing CUDA graphs: 0%", memory])]
    assert names == ["graph-capture-out-of-memory"]


@pytest.mark.parametrize("prefix", ["", "Nov 30 07:59:45 gpu1 systemd[1]: "])
def test_an_ordinary_stop_is_no_failure(prefix: str) -> None:
    """As vLLM 0.26 ends on an H200 when systemd stops it."""
    unit = "glm5-glm-5.service - glm5-deploy: glm-5"
    dead = (
        "(APIServer pid=6056) ERROR [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause."
    )
    stop = [f"{prefix}Stopping {unit}...", dead, f"{prefix}Stopped {unit}."]
    assert explain([*stop, f"{prefix}Starting {unit}..."]) == []
    assert [each.name for each in explain([*stop, dead])] == ["engine-core-died"]
    killed = "glm5-glm-5.service: Main process exited, code=killed, status=9/KILL"
    assert [each.name for each in explain([*stop[:2], killed])] == ["server-exit"]


def test_every_failure_has_a_line() -> None:
    assert [row.name for row in known_failures()] == list(SHOWN)


def test_texts_are_sentences() -> None:
    for row in known_failures():
        assert row.cause.endswith(".")
        assert row.remedy.endswith(".")


@pytest.mark.parametrize("line", [row[0] for row in PROGRESS])
def test_ordinary_lines_are_not_explained(line: str) -> None:
    assert explain([line]) == []


def test_a_warning_about_the_limit_is_no_failure() -> None:
    warning = (
        "WARNING Found ulimit of 20000 and failed to automatically increase with error current "
        "limit exceeds maximum limit. This can cause fd limit errors like "
        "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"
    )
    assert explain([warning]) == []


def test_causes_come_before_symptoms_and_count() -> None:
    lines = [SHOWN["engine-core-died"][2], *SHOWN["disk-full"] * 3, SHOWN["server-exit"][0]]
    found = explain(lines)
    assert [each.name for each in found] == ["disk-full", "engine-core-died", "server-exit"]
    assert found[0].count == 3


def test_following_tells_each_failure_once() -> None:
    explainer = Explainer()
    line = SHOWN["port-in-use"][0]
    assert explainer.feed(line) is not None
    assert explainer.feed(line) is None


@pytest.mark.parametrize(("line", "text", "fraction"), PROGRESS)
def test_progress(line: str, text: str | None, fraction: float | None) -> None:
    assert parse_progress(line) == (None if text is None else (text, fraction))


def test_when_a_failure_was_seen_is_told() -> None:
    explainer = Explainer()
    for at in (3600.0, 7200.0, 7260.0):
        explainer.feed(SHOWN["port-in-use"][0], at)
    (found,) = explainer.found()
    assert (found.count, found.first, found.last) == (3, 3600.0, 7260.0)
    assert set(found.to_json()) == {"name", "severity", "cause", "remedy", "line", "count"}


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ([3600.0, 7260.0], "bw1: port-in-use  (2 lines, 01:00:00 to 02:01:00)"),
        ([3600.0], "bw1: port-in-use  (01:00:00)"),
        ([None], "bw1: port-in-use"),
    ],
)
def test_the_title_says_when(
    times: list[float | None], title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (found,) = explain_timed((SHOWN["port-in-use"][0], at) for at in times)
    stream = io.StringIO()
    print_explanation(Console(file=stream, width=80, highlight=False), "bw1", found, 8000.0)
    monkeypatch.undo()
    time.tzset()
    assert stream.getvalue().splitlines()[0] == title
