"""Entries as lines for people: prefixed and coloured by host, harmless for a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from glm5_deploy.logs.explain import Explanation
from glm5_deploy.logs.journal import Entry
from glm5_deploy.report.text import clean, colour

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "symptom": "dim"}


def entry_lines(entry: Entry, width: int, now: float) -> list[Text]:
    """The entry's lines, each with host and local time; the day stands there where it is not today.

    Args:
        width: columns for the host's name.
    """
    from rich.text import Text

    prefix = f"{clean(entry.host):<{width}}"
    stamp, style = _stamp(entry.time, now), _style(entry)
    found = []
    for text in clean(entry.message).split("\n"):
        line = Text(prefix, style=colour(entry.host))
        line.append(f" {stamp} ", style="dim")
        line.append(text, style=style)
        found.append(line)
    return found


def _stamp(moment: float, now: float) -> str:
    here = time.localtime(moment)
    same_day = time.strftime("%x", here) == time.strftime("%x", time.localtime(now))
    return time.strftime("%H:%M:%S" if same_day else "%m-%d %H:%M:%S", here)


def _style(entry: Entry) -> str:
    """By priority, and by vLLM's own word for it: what it prints has priority info throughout."""
    head = entry.message[:120]
    if (entry.priority is not None and entry.priority <= 3) or " ERROR " in head:
        return "red"
    if entry.priority == 4 or " WARNING " in head:
        return "yellow"
    return ""


def _span(first: float, last: float, now: float) -> str:
    start, end = _stamp(first, now), _stamp(last, now)
    return start if start == end else f"{start} to {end}"


def print_explanation(console: Console, host: str, found: Explanation, now: float) -> None:
    """What happened and when, why, what to do, and the line that shows it."""
    from rich.text import Text

    title = Text(f"{clean(host)}: ", style=colour(host))
    title.append(found.name, style=_SEVERITY_STYLES[found.severity])
    told = [f"{found.count} lines"] if found.count > 1 else []
    told += [_span(found.first, found.last, now)] if found.first and found.last else []
    if told:
        title.append(f"  ({', '.join(told)})", style="dim")
    console.print(title)
    body = Text(f"  {found.cause}\n")
    body.append(f"  → {found.remedy}\n", style="yellow")
    body.append(f"  {clean(found.line).strip()}", style="dim")
    console.print(body, soft_wrap=True)
