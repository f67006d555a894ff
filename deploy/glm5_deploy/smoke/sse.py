"""Server-sent events, read as a client reads them: chunk boundaries may fall anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Complete lines without their ends (LF or CRLF); bytes after the last line end are no line."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        *complete, rest = rest.split(b"\n")
        for line in complete:
            yield line.removesuffix(b"\r").decode("utf-8", errors="replace")


def events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each event, its lines joined by newlines; other fields are dropped."""
    data: list[str] = []
    for line in lines(chunks):
        if not line and data:
            yield "\n".join(data)
            data = []
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
