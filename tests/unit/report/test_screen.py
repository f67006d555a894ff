"""What the screen writes, without a terminal and with one."""

from __future__ import annotations

import io
import threading

import pytest
from glm5_deploy.report.outcome import ChangeReport, Check, ErrorReport, HostOutcome
from glm5_deploy.report.screen import Screen
from rich.console import Console

EVIL = "step [bold red]1[/bold red] \x1b[2J:smile:"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(verbose: bool = False, quiet: bool = False) -> tuple[Screen, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return (
        Screen(["bw1", "b2"], verbose=verbose, quiet=quiet, stream=stream, clock=clock),
        stream,
        clock,
    )


def test_plain_lines_keep_text_from_hosts_as_text() -> None:
    screen, stream, _ = plain()
    screen.stage("bw1", "venv")
    screen.progress("bw1", EVIL)
    assert stream.getvalue() == "bw1  venv        step [bold red]1[/bold red] :smile:\n"


def test_plain_progress_is_rate_limited() -> None:
    screen, stream, clock = plain()
    screen.stage("bw1", "model")
    for percent in range(100):
        clock.now = percent / 10
        screen.progress("bw1", f"{percent}/100 files", percent / 100)
    assert stream.getvalue().splitlines() == [
        "bw1  model       0/100 files",
        "bw1  model       50/100 files 50%",
    ]


def test_a_new_stage_shows_at_once() -> None:
    screen, stream, _ = plain()
    for stage in ("venv", "model"):
        screen.stage("bw1", stage)
        screen.progress("bw1", "starting")
    assert len(stream.getvalue().splitlines()) == 2


def test_verbose_shows_passed_checks_and_stages() -> None:
    check = Check("chat", "passed", "'x'")
    for verbose in (False, True):
        screen, stream, _ = plain(verbose=verbose)
        screen.stage("b2", "smoke")
        screen.check("b2", check)
        assert ("✓ chat: 'x'" in stream.getvalue()) is verbose


def test_quiet_shows_notes_and_failures_alone() -> None:
    screen, stream, _ = plain(quiet=True)
    screen.stage("bw1", "smoke")
    screen.progress("bw1", "x")
    screen.change("bw1", ChangeReport("venv", "install", "x"))
    screen.finished(HostOutcome("bw1", "changed"))
    screen.note("bw1", "careful")
    screen.check("bw1", Check("chat", "failed", "no text"))
    assert stream.getvalue().splitlines() == [
        "bw1  smoke     ! careful",
        "bw1  smoke     ✗ chat: no text",
    ]


def test_live_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with Screen(["bw1"], stream=stream) as screen:
        screen.stage("bw1", "health")
        screen.progress("bw1", EVIL, 0.4)
        drawn = io.StringIO()
        Console(file=drawn, width=100).print(screen.render())
        assert "40%  step [bold red]1[/bold red] :smile:" in drawn.getvalue()
        screen.note("bw1", "a note")
        screen.finished(HostOutcome("bw1", "failed", error=ErrorReport("it \x1b[2Jbroke")))
    text = stream.getvalue()
    assert "a note" in text
    assert "it broke" in text
    assert "\x1b[2J" not in text
    assert "\x1b[3" in text


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with Screen(stream=stream) as screen:
        screen.note("bw1", "a note")
        screen.change("bw1", ChangeReport("venv", "install", "x"))
    assert "\x1b[3" not in stream.getvalue()


def test_a_note_about_the_whole_run_makes_no_row() -> None:
    screen, stream, _ = plain()
    screen.note("", "interrupted: cleaning up")
    assert stream.getvalue() == "               ! interrupted: cleaning up\n"
    assert list(screen._rows) == ["bw1", "b2"]


def test_many_hosts_on_a_low_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen([f"h{i}" for i in range(50)], stream=Terminal(), live=True)
    console = Console(width=80, height=20, file=io.StringIO())
    screen._console = console
    console.print(screen.render())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 20
    assert lines[-1].strip() == "and 32 hosts more"


def test_many_threads() -> None:
    screen, stream, _ = plain(verbose=True)

    def work(host: str) -> None:
        for number in range(50):
            screen.note(host, f"note {number}")

    threads = [threading.Thread(target=work, args=(f"h{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 400
    assert all("! note " in line for line in lines)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("up", "bw1              changed in 1.0 s\n"),
        ("plan", "bw1              would change in 1.0 s\n"),
        ("unlock", ""),
    ],
)
def test_what_came_of_a_host_in_the_commands_own_words(command: str, line: str) -> None:
    stream = io.StringIO()
    screen = Screen(["bw1"], command=command, stream=stream)
    screen.finished(HostOutcome("bw1", "changed", seconds=1.0))
    assert stream.getvalue() == line


def test_verbose_says_when_a_stage_began_and_what_the_connection_did() -> None:
    screen, stream, clock = plain(verbose=True)
    for moment, stage in ((0.5, "preflight"), (0.7, "preflight"), (12.0, "venv")):
        clock.now = moment
        screen.stage("bw1", stage)
    screen.finished(HostOutcome("bw1", "changed", seconds=13.0, data={"round_trips": 7}))
    assert stream.getvalue().splitlines() == [
        "bw1  preflight   begins after 0.5 s",
        "bw1  venv        begins after 12 s",
        "bw1              changed in 13 s, 7 round trips",
    ]
