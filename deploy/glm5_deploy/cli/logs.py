"""``logs``: what servers say, from many hosts at once, with known failures explained."""

from __future__ import annotations

import contextlib
import json as json_module
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glm5_deploy.cli.options import (
    ForksOption,
    GroupOption,
    HostOption,
    InventoryOption,
    JsonOption,
    ProfileOption,
    connect,
    selection,
)

if TYPE_CHECKING:
    from rich.console import Console

    from glm5_deploy.config.models import Target
    from glm5_deploy.errors import ExitCode, Glm5Error
    from glm5_deploy.hosts.host import Host
    from glm5_deploy.logs.explain import Explainer, Explanation
    from glm5_deploy.logs.journal import Entry, Query

_EXPLAINED_LINES = 2000
_READ_LINES = 100
_FOLLOW_LINES = 10

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")]
LinesOption = Annotated[
    int | None,
    typer.Option("--lines", "-n", min=1, help="The last N lines of each host; default 100."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help='Like "1 hour ago", today, "2026-11-29 18:00".')
]
UntilOption = Annotated[str | None, typer.Option("--until", help="As --since.")]
GrepOption = Annotated[
    str | None, typer.Option("--grep", help="Only what matches; without capitals, any case.")
]
PriorityOption = Annotated[
    str | None, typer.Option("--priority", "-p", help="This one and worse: err, warning, … or 0-7.")
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Name known failures with cause and remedy.")
]


def logs(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    follow: FollowOption = False,
    lines: LinesOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    grep: GrepOption = None,
    priority: PriorityOption = None,
    explain: ExplainOption = False,
    forks: ForksOption = 32,
    json: JsonOption = False,
) -> None:
    """Show the servers' logs, from every host at once; with --explain, what they mean.

    Example: glm5-deploy logs --group blackwell -f --grep error
    """
    from glm5_deploy.logs.journal import Query

    number = lines or _default_lines(follow=follow, explain=explain, since=since)
    query = Query(number, since, until, grep, priority, follow)
    query.check()
    targets = selection(inventory, host, group, profile)
    view = View(targets, json=json, explain=explain, show=follow or not explain or bool(lines))
    readers = Readers(targets, query, view, inventory, forks)
    raise typer.Exit(int(readers.follow() if follow else readers.read()))


def _default_lines(*, follow: bool, explain: bool, since: str | None) -> int | None:
    if follow:
        return _FOLLOW_LINES
    if since is not None:
        return None
    return _EXPLAINED_LINES if explain else _READ_LINES


class View:
    """Shows entries, remarks and explanations; used by one thread alone.

    Args:
        show: print the entries themselves, not the explanations alone.
    """

    def __init__(self, targets: Sequence[Target], *, json: bool, explain: bool, show: bool) -> None:
        from glm5_deploy.report.tables import make_console

        self.json, self.explain, self.show = json, explain, show
        self._names = [target.name for target in targets]
        self._width = max((len(name) for name in self._names), default=0)
        self._out: Console = make_console()
        self._err: Console = make_console(stderr=True)
        self._explainers: dict[str, Explainer] = {}

    def entry(self, entry: Entry) -> None:
        """Print one entry as it comes; and its meaning, where it has a known one."""
        from glm5_deploy.logs.show import entry_lines, print_explanation

        if self.json:
            print(json_module.dumps(entry.to_json(), ensure_ascii=False), flush=True)
        elif self.show:
            for line in entry_lines(entry, self._width, time.time()):
                self._out.print(line, soft_wrap=True)
            self._out.file.flush()
        found = self._feed(entry) if self.explain else None
        if found is not None and self.json:
            told = {"host": entry.host, "explanation": found.to_json()}
            print(json_module.dumps(told, ensure_ascii=False), flush=True)
        elif found is not None:
            print_explanation(self._out, entry.host, found, time.time())

    def remark(self, host: str, text: str, style: str = "yellow") -> None:
        """Print something about a host on stderr."""
        from rich.text import Text

        from glm5_deploy.report.text import clean, colour

        line = Text(f"{host:<{self._width}} ", style=colour(host))
        line.append(clean(text).removeprefix(f"{host}: "), style=style)
        self._err.print(line, soft_wrap=True)

    def error(self, host: str, error: Glm5Error) -> None:
        """Print why a host shows nothing."""
        hint = f"\n  → {error.hint}" if error.hint else ""
        self.remark(host, f"error: {error.message.removeprefix(f'{host}: ')}{hint}", "red")

    def all(self, found: dict[str, list[Entry]], errors: dict[str, Glm5Error]) -> None:
        """Print what was read: all hosts merged in time order, then the explanations."""
        if self.json:
            self._document(found, errors)
            return
        merged = sorted((e for many in found.values() for e in many), key=lambda e: e.time)
        if self.show:
            self._print_all(merged)
        if self.explain:
            self._explanations(found)

    def _print_all(self, merged: Sequence[Entry]) -> None:
        from glm5_deploy.logs.show import entry_lines

        now = time.time()
        for entry in merged:
            for line in entry_lines(entry, self._width, now):
                self._out.print(line, soft_wrap=True)

    def _explanations(self, found: dict[str, list[Entry]]) -> None:
        from glm5_deploy.logs.show import print_explanation

        for host, entries in found.items():
            known = explained(entries)
            for each in known:
                print_explanation(self._out, host, each, time.time())
            if not known and entries:
                self.remark(host, f"no known failure in {len(entries)} lines", "green")

    def _document(self, found: dict[str, list[Entry]], errors: dict[str, Glm5Error]) -> None:
        hosts: dict[str, object] = {}
        for name in self._names:
            entries, error = found.get(name, []), errors.get(name)
            hosts[name] = {
                "entries": [entry.to_json() for entry in entries],
                "explanations": [e.to_json() for e in explained(entries)] if self.explain else [],
                "error": error and {"message": error.message, "hint": error.hint},
            }
        document = {"command": "logs", "ok": not errors, "hosts": hosts}
        print(json_module.dumps(document, ensure_ascii=False, indent=2), flush=True)

    def _feed(self, entry: Entry) -> Explanation | None:
        from glm5_deploy.logs.explain import Explainer

        return self._explainers.setdefault(entry.host, Explainer()).feed(entry.message, entry.time)


def explained(entries: Sequence[Entry]) -> list[Explanation]:
    """Known failures among entries."""
    from glm5_deploy.logs.explain import explain_timed

    return explain_timed((line, each.time) for each in entries for line in each.message.split("\n"))


@dataclass(frozen=True)
class Said:
    """What a host's thread hands to the main thread: an entry, a remark, or its end."""

    host: str
    entry: Entry | None = None
    remark: str | None = None
    error: Glm5Error | None = None
    ended: bool = False


@dataclass
class Readers:
    """One thread a host; the main thread alone prints, and answers Ctrl-C at once."""

    targets: Sequence[Target]
    query: Query
    view: View
    inventory: Path | None
    forks: int
    _said: queue.Queue[Said] = field(default_factory=queue.Queue)
    _stop: threading.Event = field(default_factory=threading.Event)
    _hosts: list[Host] = field(default_factory=list)

    def read(self) -> ExitCode:
        """Print the present entries of all hosts."""
        found: dict[str, list[Entry]] = {target.name: [] for target in self.targets}
        errors: dict[str, Glm5Error] = {}
        for said in self._run():
            if said.entry is not None:
                found[said.host].append(said.entry)
            if said.error is not None:
                errors[said.host] = said.error
        self.view.all(found, errors)
        return self._exit_code(errors)

    def follow(self) -> ExitCode:
        """Print entries as they come, until Ctrl-C or until no host is left."""
        errors: dict[str, Glm5Error] = {}
        for said in self._run():
            if said.entry is not None:
                self.view.entry(said.entry)
            if said.error is not None:
                errors[said.host] = said.error
        return self._exit_code(errors)

    def _exit_code(self, errors: dict[str, Glm5Error]) -> ExitCode:
        from glm5_deploy.errors import ExitCode

        return ExitCode.worst([error.exit_code for error in errors.values()])

    def _run(self) -> Iterator[Said]:
        """What the threads say, until all have ended; remarks and errors are printed on the way."""
        limit = threading.Semaphore(self.forks)
        self._hosts = [connect(target, self.inventory) for target in self.targets]
        for host, target in zip(self._hosts, self.targets, strict=True):
            work = (host, target, limit)
            threading.Thread(target=self._work, args=work, daemon=True, name=host.name).start()
        left = len(self.targets)
        try:
            while left:
                said = self._said.get()
                left -= said.ended
                if said.remark is not None:
                    self.view.remark(said.host, said.remark)
                if said.error is not None:
                    self.view.error(said.host, said.error)
                yield said
        finally:
            self._leave()

    def _work(self, host: Host, target: Target, limit: threading.Semaphore) -> None:
        error: Glm5Error | None = None
        try:
            # A host that is followed never ends, so that a limit would leave others out for ever.
            with contextlib.nullcontext() if self.query.follow else limit:
                self._journal(host, target)
        except Exception as caught:
            error = _known(caught)
        self._said.put(Said(host.name, error=None if self._stop.is_set() else error, ended=True))

    def _journal(self, host: Host, target: Target) -> None:
        from glm5_deploy.logs.read import Journal

        name = host.name
        journal = Journal(
            host,
            target,
            self.query,
            lambda text: self._said.put(Said(name, remark=text)),
            self._stop,
        )
        if self.query.follow:
            journal.follow(lambda entry: self._said.put(Said(name, entry)))
            return
        for entry in journal.read():
            self._said.put(Said(name, entry))

    def _leave(self) -> None:
        """End what still runs on the hosts; each at once, and none waits for a dead one."""
        self._stop.set()
        closing = [threading.Thread(target=host.close, daemon=True) for host in self._hosts]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(timeout=2.0)


def _known(error: Exception) -> Glm5Error:
    from glm5_deploy.errors import Glm5Error

    if isinstance(error, Glm5Error):
        return error
    return Glm5Error(f"{type(error).__name__}: {error}", "this is a fault of glm5-deploy")


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(logs)
