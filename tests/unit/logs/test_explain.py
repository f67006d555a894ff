"""Each known failure is found in the lines that show it, and in no ordinary line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from glm5_deploy.logs.explain import Explainer, explain, known_failures
from glm5_deploy.logs.progress import parse_progress

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
