"""What is asked of journalctl, and how its answers are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from glm5_deploy.cli.logs import View
from glm5_deploy.config.models import Target
from glm5_deploy.errors import SudoRefusedError, UnreachableError, UsageError
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.hosts.host import Line
from glm5_deploy.logs.access import parse_access
from glm5_deploy.logs.journal import Entry, Query, journal_command, parse_entry
from glm5_deploy.logs.read import Journal
from glm5_deploy.logs.show import entry_lines

MakeLine = Callable[..., str]
FIXED = (
    "journalctl --unit=u.service --output=json --output-fields=MESSAGE,PRIORITY --all --no-pager"
)


@pytest.mark.parametrize(
    ("query", "cursor", "arguments"),
    [
        (Query(), None, "--lines=100"),
        (Query(None, since="1 hour ago"), None, "'--since=1 hour ago' --lines=all"),
        (Query(5, follow=True), None, "--lines=5 --follow"),
        (Query(5, since="today", follow=True), "s=1;i=2", "'--after-cursor=s=1;i=2' --follow"),
        (
            Query(None, None, "now", "a b'c", "err..warning"),
            None,
            "--lines=all --until=now '--grep=a b'\"'\"'c' --priority=err..warning",
        ),
    ],
)
def test_command(query: Query, cursor: str | None, arguments: str) -> None:
    query.check()
    assert journal_command("u.service", query, cursor).shell() == f"{FIXED} {arguments}"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(grep="("), "--grep (: missing ), unterminated subpattern at position 0"),
        (Query(priority="loud"), "--priority loud is unknown"),
        (Query(priority="8"), "--priority 8 is unknown"),
        (Query(until="now", follow=True), "--until makes no sense with --follow"),
    ],
)
def test_wrong_query(query: Query, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        query.check()
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("plain ünïcode", "plain ünïcode"),
        (list(b"\rLoading: 40%\rLoading: 60%"), "Loading: 60%"),
        ([255, 104, 105], "�hi"),
        (["first", "second"], "first\nsecond"),
        (["text", [104, 105]], "text\nhi"),
        (None, "(a message too large to show)"),
        ("two\nlines", "two\nlines"),
        ("", ""),
    ],
)
def test_message(message: object, expected: str, journal_line: MakeLine) -> None:
    entry = parse_entry("bw1", journal_line(message))
    assert entry is not None
    assert entry.message == expected
    assert (entry.priority, entry.cursor) == (6, "c1")
    assert entry.to_json()["time"] == "2026-11-18T11:06:41.000+00:00"


@pytest.mark.parametrize(
    "line", ["", "-- No entries --", '{"MESSAGE": "cut', '{"a": 1}', "[]", "7"]
)
def test_other_lines_are_passed_over(line: str) -> None:
    assert parse_entry("bw1", line) is None


@pytest.mark.parametrize(
    ("text", "sudo", "persistent", "known"),
    [
        ("root\npersistent\nloaded\n", False, True, True),
        ("op adm sudo\nvolatile\nnot-found\n", False, False, False),
        ("op users\npersistent\nloaded\n", True, True, True),
        ("", True, False, False),
    ],
)
def test_access(text: str, sudo: bool, persistent: bool, known: bool) -> None:
    found = parse_access(text)
    assert (found.sudo, found.persistent, found.unit_known) == (sudo, persistent, known)


def journal(host: FakeHost, target: Target, **query: object) -> tuple[Journal, list[str]]:
    said: list[str] = []
    return Journal(host, target, Query(**query), said.append), said  # type: ignore[arg-type]


def test_entries_come_in_order_of_time(target: Target, journal_line: MakeLine) -> None:
    lines = "\n".join(journal_line(f"m{n}", n) for n in (3, 1, 2))
    host = FakeHost(
        expected=[Expected("sh", "root\npersistent\nloaded"), Expected("journalctl", lines)]
    )
    found, said = journal(host, target)
    assert [entry.message for entry in found.read()] == ["m1", "m2", "m3"]
    assert said == []
    assert host.calls[-1].sudo is False


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("root\npersistent\nloaded", "no entries of glm5-tiny.service that match"),
        (
            "root\nvolatile\nloaded",
            "no entries: the journal is kept in memory and starts at the last boot",
        ),
        (
            "root\npersistent\nnot-found",
            "no entries: there is no unit glm5-tiny.service here (`glm5-deploy up` makes it)",
        ),
    ],
)
def test_no_entries_says_why(probe: str, expected: str, target: Target) -> None:
    host = FakeHost(expected=[Expected("sh", probe), Expected("journalctl", "-- No entries --")])
    found, said = journal(host, target)
    assert found.read() == []
    assert said == [expected]


def test_without_the_group_it_says_so_and_uses_sudo(target: Target, journal_line: MakeLine) -> None:
    host = FakeHost(
        login_user="op",
        expected=[
            Expected("sh", "op\npersistent\nloaded"),
            Expected("journalctl", journal_line("x")),
        ],
    )
    found, said = journal(host, target)
    found.read()
    assert said == ["op is not in the group systemd-journal: reading with sudo"]
    assert host.calls[-1].sudo is True


def test_without_group_and_sudo_the_hint_is_a_command(target: Target) -> None:
    refused = SudoRefusedError("no sudo for you")
    host = FakeHost(
        login_user="op",
        expected=[Expected("sh", "op\npersistent\nloaded"), Expected("journalctl", raises=refused)],
    )
    with pytest.raises(SudoRefusedError) as caught:
        journal(host, target)[0].read()
    assert caught.value.hint == "on the host: usermod --append --groups systemd-journal op"


def test_a_question_that_journalctl_refuses(target: Target) -> None:
    line = Line("stderr", "Failed to parse timestamp: yesterdaz")
    host = FakeHost(
        expected=[Expected("sh", "root\npersistent\nloaded"), Expected("journalctl", lines=(line,))]
    )
    with pytest.raises(UsageError, match="Failed to parse timestamp: yesterdaz") as caught:
        journal(host, target, since="yesterdaz")[0].read()
    assert "1 hour ago" in (caught.value.hint or "")


def test_an_error_of_a_host_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    View([], json=False, explain=False, show=True).error("bw1", UsageError("bw1: no", "do so"))
    assert capsys.readouterr().err == "bw1 error: no\n  → do so\n"


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm5_deploy.logs.read._BACKOFF", (0.0,))


def follow(found: Journal, until: Callable[[list[Entry]], bool]) -> list[Entry]:
    seen: list[Entry] = []

    def emit(entry: Entry) -> None:
        seen.append(entry)
        if until(seen):
            found.stop.set()

    thread = threading.Thread(target=found.follow, args=(emit,), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    return seen


@pytest.mark.usefixtures("no_wait")
def test_follow_goes_on_behind_the_last_entry(target: Target, journal_line: MakeLine) -> None:
    def first(command: object) -> bool:
        return "--after-cursor" not in str(command) and "journalctl" in str(command)

    def second(command: object) -> bool:
        return "--after-cursor=c2" in str(command)

    probe = Expected("sh", "root\npersistent\nloaded", times=None)
    lost = Expected(second, raises=UnreachableError("bw1: the connection broke during: x"))
    host = FakeHost(
        expected=[
            probe,
            Expected(first, "\n".join(journal_line(f"m{n}", n) for n in (1, 2))),
            lost,
            Expected(second, journal_line("m3", 3)),
        ]
    )
    found, said = journal(host, target, follow=True)
    seen = follow(found, lambda entries: len(entries) == 3)
    assert [entry.message for entry in seen] == ["m1", "m2", "m3"]
    assert said == ["connection lost, connecting again (bw1: the connection broke)"]


def test_follow_gives_up_on_a_host_that_was_never_there(target: Target) -> None:
    host = FakeHost(expected=[Expected("sh", raises=UnreachableError("no route"))])
    with pytest.raises(UnreachableError):
        journal(host, target, follow=True)[0].follow(lambda _entry: None)


def test_shown_lines_are_harmless_and_prefixed() -> None:
    now = time.time()
    entry = Entry("bw1", now, "one \x1b[2Jtwo [bold]x[/bold]\nthree", 3, "c")
    texts = entry_lines(entry, 4, now)
    stamp = time.strftime("%H:%M:%S", time.localtime(now))
    assert [text.plain for text in texts] == [
        f"bw1  {stamp} one two [bold]x[/bold]",
        f"bw1  {stamp} three",
    ]
    old = entry_lines(Entry("bw1", now - 3 * 86400, "x", 6, "c"), 3, now)
    assert len(old[0].plain) == len(f"bw1 11-26 {stamp} x")


def test_follow_says_where_there_is_no_unit(target: Target, journal_line: MakeLine) -> None:
    host = FakeHost(
        expected=[
            Expected("sh", "root\npersistent\nnot-found"),
            Expected("journalctl", journal_line("x")),
        ]
    )
    found, said = journal(host, target, follow=True)
    follow(found, lambda entries: len(entries) == 1)
    assert said == [
        "no entries: there is no unit glm5-tiny.service here (`glm5-deploy up` makes it)"
    ]
