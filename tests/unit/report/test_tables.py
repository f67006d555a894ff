from __future__ import annotations

import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from glm5_deploy.logs.explain import Explanation
from glm5_deploy.logs.show import print_explanation
from glm5_deploy.report.columns import middle
from glm5_deploy.report.outcome import (
    ChangeReport,
    Check,
    ErrorReport,
    HostOutcome,
    Report,
    SmokeChecksError,
)
from glm5_deploy.report.tables import outcome_table, print_checks, print_report, render_plan
from glm5_deploy.smoke.junit import junit_xml
from glm5_deploy.stages.change import Change
from rich.console import Console

CHECKS = (
    Check("health", "passed", "200", None, 0.5),
    Check("chat", "failed", "no \x1b[31mtext [bold]at all[/bold]", "set <smoke.chat>", 1.0),
    Check("long prompt", "skipped", "none named"),
)
ERROR = ErrorReport("no route", "is it up?")
REPORT = Report(
    "up",
    (
        HostOutcome("bw1", "failed", (ChangeReport("a", "write", "b"),), "3f2a", 12.3, CHECKS),
        HostOutcome("bw2", "unreachable", seconds=10.0, error=ERROR),
    ),
)


def shown(width: int = 80) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False), stream


@pytest.mark.parametrize("width", [60, 80, 140])
def test_table_fits_and_keeps_text(width: int) -> None:
    console, stream = shown(width)
    print_report(REPORT, False, checks=True, console=console)
    text = stream.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "no text [bold]at all[/bold]" in text
    assert "→ set <smoke.chat>" in text
    assert "bw2: no route\n  → is it up?" in text
    assert "\x1b" not in text


COMMAND = "printf '%s\\n' '" + "10.0.0.1 ssh-ed25519 AAAA " * 8 + "' >> /root/.ssh/known_hosts"


def test_commands_in_hints_are_whole_on_a_narrow_screen() -> None:
    check = Check("host key", "failed", "unknown", COMMAND)
    error = ErrorReport("no", f"trust it with: {COMMAND}")
    console, stream = shown(60)
    report = Report("up", (HostOutcome("bw1", "failed", checks=(check,), error=error),))
    print_report(report, False, console=console)
    assert f"  host key → {COMMAND}\n" in stream.getvalue()
    assert f"  → trust it with: {COMMAND}\n" in stream.getvalue()


def test_an_explanation_is_whole_on_a_narrow_screen() -> None:
    console, stream = shown(40)
    found = Explanation("x", "error", "A cause.", f"Run {COMMAND}", "a log line " * 9)
    print_explanation(console, "bw1", found, 0.0)
    expected = ["bw1: x", "  A cause.", f"  → Run {COMMAND}", f"  {('a log line ' * 9).strip()}"]
    assert stream.getvalue().splitlines() == expected


def test_only_failed_rows_unless_asked() -> None:
    console, stream = shown()
    print_report(REPORT, False, console=console)
    assert "long prompt" not in stream.getvalue()
    assert "chat" in stream.getvalue()


@pytest.mark.parametrize("host", ["bw1", "inference-eu-west-1.rack7.example.com"])
@pytest.mark.parametrize("width", [70, 80])
def test_times_and_names_stay_whole_lines(host: str, width: int) -> None:
    rows = (*CHECKS, *(Check(str(number), "passed") for number in range(11)))
    outcome = HostOutcome(
        host, "reverted", (ChangeReport("a", "write", "b"),) * 12, "3f2a9c1b77d0", 185.0, rows
    )
    console, stream = shown(width)
    console.print(outcome_table(Report("up", (outcome,)), width))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0].split()[-1] == "time"
    assert lines[2].startswith(middle(host, 12)[:5])
    assert " 12 changes " in lines[2]
    assert lines[2].rstrip().endswith("3 min 05 s")
    assert all(re.fullmatch(r"\d+ \w+,?", line.strip()) for line in lines[3:])
    assert all(part in stream.getvalue() for part in ("12 passed", "1 failed", "1 skipped"))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("abcdefgh", 8, "abcdefgh"), ("abcdefgh", 5, "ab…gh"), ("abcdefgh", 4, "ab…h")],
)
def test_middle(text: str, width: int, expected: str) -> None:
    assert middle(text, width) == expected


def test_a_failed_check_that_the_error_tells_is_not_told_twice() -> None:
    console, stream = shown()
    error = SmokeChecksError("bw1", CHECKS)
    outcome = HostOutcome(
        "bw1", "failed", checks=CHECKS, error=ErrorReport(error.message, error.hint)
    )
    print_report(Report("up", (outcome,)), False, console=console)
    assert stream.getvalue().count("no text [bold]at all") == 1
    assert "→ set <smoke.chat>" in stream.getvalue()


def test_one_hint_for_several_checks_stands_once() -> None:
    rows = [Check(name, "failed", "HTTP 500", "see the log") for name in ("chat", "stream")]
    console, stream = shown()
    print_checks(console, "bw1", rows)
    assert stream.getvalue().splitlines()[-1] == "  chat, stream → see the log"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, True)
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["ok"] is False
    assert document["hosts"]["bw1"]["checks"][1]["status"] == "failed"
    assert captured.err == ""


PLANNED = Report(
    "plan",
    (
        HostOutcome("bw1", "changed", (ChangeReport("a", "write", "b"),)),
        HostOutcome("bw2", "unreachable", error=ERROR),
        HostOutcome("bw3", "unchanged"),
    ),
)


def test_a_plan_says_what_would_be_and_nothing_of_hosts_without_one() -> None:
    console, stream = shown()
    print_report(PLANNED, False, console=console)
    rows = [re.split(r"  +", line.strip()) for line in stream.getvalue().splitlines()[2:5]]
    assert [row[:3] for row in rows] == [
        ["bw1", "would change", "1 change"],
        ["bw2", "unreachable", "–"],
        ["bw3", "unchanged", "0 changes"],
    ]


@pytest.mark.parametrize("command", ["releases", "audit", "unlock"])
def test_commands_that_only_read_print_errors_alone(command: str) -> None:
    console, stream = shown()
    hosts = (HostOutcome("bw1", "unchanged"), HostOutcome("bw2", "unreachable", error=ERROR))
    print_report(Report(command, hosts), False, console=console)
    assert stream.getvalue() == "bw2: no route\n  → is it up?\n"


def test_down_says_what_was_stopped_and_removed() -> None:
    changes = (
        ChangeReport("service", "stop", "glm5.service"),
        ChangeReport("system", "remove", "/opt/glm5/venvs"),
    )
    console, stream = shown()
    print_report(Report("down", (HostOutcome("bw1", "changed", changes),)), False, console=console)
    assert stream.getvalue().endswith("bw1: stopped glm5.service\nbw1: removed /opt/glm5/venvs\n")


def test_plan_with_diff() -> None:
    console, stream = shown()
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n-old [red]\n+new \x1b[2J\n"
    change = Change("service", "write", "/etc/x.service", "argument changed", diff=diff)
    restart = Change("service", "restart", "x.service", downtime=True)
    render_plan(console, {"bw1": [change, restart], "bw2": []}, True)
    text = stream.getvalue()
    assert "bw1  2 changes  the server stops meanwhile" in text
    assert "bw2  0 changes" in text
    assert "    -old [red]\n    +new \n" in text
    plain_console, plain = shown()
    render_plan(plain_console, {"bw1": [change]}, False)
    assert "old [red]" not in plain.getvalue()


def test_junit() -> None:
    root = ET.fromstring(junit_xml(REPORT.hosts))
    first, second = root
    assert first.attrib | {"time": ""} == {
        "name": "bw1", "tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "",
    }  # fmt: skip
    failure = first.find("testcase[@name='chat']/failure")
    assert failure is not None
    assert failure.attrib["message"] == "no text [bold]at all[/bold]"
    assert second.attrib["errors"] == "1"
    error = second.find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "no route"
