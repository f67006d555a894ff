"""Text from hosts, made harmless for a terminal, and how values are shown to people."""

from __future__ import annotations

import re
import unicodedata

# Whole ANSI sequences: CSI (both forms), OSC, other strings, two-character escapes.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[PX^_].*?\x1b\\"
    r"|\x1b[ -/]*[0-~]"
)
_HARMFUL = ("Cc", "Cf", "Cs")  # Unicode categories: control, format (reordering), surrogate
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta")


def clean(text: str) -> str:
    """Without escape sequences, control characters and characters that reorder text.

    Newlines stay; tabs become spaces.
    """
    plain = _ESCAPES.sub("", text).replace("\t", "    ").replace("\r\n", "\n")
    return "".join(c for c in plain if c == "\n" or unicodedata.category(c) not in _HARMFUL)


def one_line(text: str) -> str:
    """`clean`, with every run of white space made one space."""
    return " ".join(clean(text).split())


def colour(host: str) -> str:
    """A host's colour: the same in every table and log of every run."""
    return _COLOURS[sum(host.encode()) % len(_COLOURS)]


def age(value: float) -> str:
    """The largest unit alone: ``40 s``, ``13 min``, ``2 h``, ``3 d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= size:
            return f"{int(value // size)} {unit}"
    return f"{int(value)} s"


def seconds(value: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if value < 10:
        return f"{value:.1f} s"
    total = round(value)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02} min"
    return f"{total // 86400} d {total % 86400 // 3600:02} h"
