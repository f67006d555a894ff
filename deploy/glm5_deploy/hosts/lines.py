"""Lines of text: from bytes that arrive in pieces, and the last ones of what was said."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

LONGEST = 1 << 20
"""Characters after which a line without an end is cut, so that a broken program cannot fill the
memory.
"""


def tail(text: str, lines: int = 5) -> str:
    """The end of what a program said: where errors are."""
    return "\n".join(text.strip().splitlines()[-lines:]) or "it said nothing"


class LineSplitter:
    """Feed it bytes, get whole lines; multi-byte characters may be split between pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """Lines that are complete by now, without their ends (LF or CRLF)."""
        text = self._pending + self._decoder.decode(data)
        *lines, self._pending = text.split("\n")
        for line in lines:
            yield line.removesuffix("\r")
        while len(self._pending) > LONGEST:
            cut, self._pending = self._pending[:LONGEST], self._pending[LONGEST:]
            yield cut

    def rest(self) -> Iterator[str]:
        """The last line, where the output ended without a newline."""
        text = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        if text:
            yield text
