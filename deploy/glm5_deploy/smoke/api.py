"""Requests to an OpenAI-like server whose every failure is one readable sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from glm5_deploy.smoke import sse

_LONGEST = 160


class AnswerError(Exception):
    """The server did not answer as it should: a sentence for the user.

    Args:
        status: the HTTP status, where one came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Streamed:
    """What a stream delivered.

    Args:
        stamps: seconds from the request to each event that carried text.
        tokens: completion tokens by the server's own count.
        total: seconds from the request to the end of the stream.
    """

    text: str
    stamps: tuple[float, ...]
    tokens: int
    total: float

    @property
    def chunks(self) -> int:
        """How many events carried text."""
        return len(self.stamps)


@dataclass
class Api:
    """One server, with a limit on each request (seconds) and on all of them (monotonic time)."""

    client: httpx.Client
    model: str
    deadline: float
    request_timeout: float = 60.0

    def patient(self) -> Api:
        """The same with three times the limit: for first requests, which compile, and long ones."""
        return replace(self, request_timeout=3 * self.request_timeout)

    def remaining(self) -> float:
        """Seconds that the next request may take; never below a tenth."""
        return max(0.1, min(self.request_timeout, self.deadline - time.monotonic()))

    def status(self, path: str, headers: dict[str, str] | None = None) -> int:
        """The status of a GET."""
        with _readable(self.remaining()):
            return self._request("GET", path, headers=headers).status_code

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object that a GET yields.

        Raises:
            AnswerError: another status than 200, no JSON, no answer in time, a broken connection.
        """
        with _readable(self.remaining()):
            return _document(self._request("GET", path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that a POST yields; errors as in `get`."""
        with _readable(self.remaining()):
            return _document(self._request("POST", path, json=body))

    def complete(self, prompt: str | list[int], max_tokens: int, **more: object) -> dict[str, Any]:
        """A greedy completion's whole answer."""
        return self.post("/v1/completions", self._greedy(prompt, max_tokens) | more)

    def stream(self, prompt: str, max_tokens: int, **more: object) -> Streamed:
        """A greedy completion, streamed to its end."""
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = self._greedy(prompt, max_tokens) | asked | more
        limit, started = self.remaining(), time.monotonic()
        until = started + limit
        with (
            _readable(limit),
            self.client.stream("POST", "/v1/completions", json=body, timeout=limit) as response,
        ):
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                whole = _whole(response, until)
                _document(whole)
                raise AnswerError(f"no event stream but {_describe(whole)}")
            return _collect(_bounded(response.iter_bytes(), until), started)

    def _greedy(self, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}

    def _request(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401
        """A whole answer, however slowly it drips, within the limit."""
        limit = self.remaining()
        until = time.monotonic() + limit
        with self.client.stream(method, path, timeout=limit, **more) as response:
            return _whole(response, until)


def _whole(response: httpx.Response, until: float) -> httpx.Response:
    """A streamed answer, read to its end."""
    content = b"".join(_bounded(response.iter_bytes(), until))
    return httpx.Response(response.status_code, headers=_plain(response.headers), content=content)


def _plain(headers: httpx.Headers) -> list[tuple[bytes, bytes]]:
    """Headers as they came, without those that describe an encoding already undone."""
    dropped = (b"content-encoding", b"transfer-encoding", b"content-length")
    return [(name, value) for name, value in headers.raw if name.lower() not in dropped]


def _bounded(chunks: Iterator[bytes], until: float) -> Iterator[bytes]:
    for chunk in chunks:
        if time.monotonic() > until:
            raise httpx.ReadTimeout("the answer did not end in time")
        yield chunk


@contextmanager
def _readable(limit: float) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise AnswerError(f"no connection: {error}") from error
    except httpx.TimeoutException as error:
        raise AnswerError(f"no answer within {limit:.0f} s") from error
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
        raise AnswerError(_broken(error)) from error
    except httpx.HTTPError as error:
        raise AnswerError(f"{type(error).__name__}: {error}") from error


_ENDED = ("Server disconnected", "peer closed connection")
"""How httpcore and h11 begin to tell of an answer without an end; the rest is no HTTP."""


def _broken(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.RemoteProtocolError) and not str(error).startswith(_ENDED):
        return f"what answers does not speak HTTP ({shorten(str(error))})"
    return f"the connection ended before the answer did ({error})"


def _document(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise AnswerError(
            f"HTTP {response.status_code}: {_message(response)}", response.status_code
        )
    try:
        found = _json(response.content)
    except ValueError:
        raise AnswerError(f"no JSON but {_describe(response)}") from None
    if not isinstance(found, dict):
        raise AnswerError(f"no JSON object but {_describe(response)}")
    return found


def _json(text: str | bytes) -> Any:  # noqa: ANN401
    """A document.

    Raises:
        ValueError: it is none, or nested deeper than anything that is meant.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _message(response: httpx.Response) -> str:
    """The server's own words, from the shapes that vLLM and FastAPI use."""
    try:
        found = _json(response.content)
    except ValueError:
        return _describe(response) if response.content else "no message"
    error = found.get("error", found.get("detail", found)) if isinstance(found, dict) else found
    text = error.get("message", error) if isinstance(error, dict) else error
    return shorten(str(text))


def _describe(response: httpx.Response) -> str:
    # Whatever charset it claims: Python knows codecs that are none for text.
    text = response.content.decode("utf-8", errors="replace")
    kind = response.headers.get("content-type", "an unknown type").partition(";")[0]
    return f"{kind}: {shorten(text)!r}"


def shorten(text: str, limit: int = _LONGEST) -> str:
    """One line of at most ``limit`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def quoted(text: str, limit: int = 60) -> str:
    """A model's text as a literal, so that white space and control characters show."""
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")


def shown(value: object) -> str:
    """Something of an answer in its own notation, shortened."""
    return shorten(json.dumps(value, ensure_ascii=False))


def records(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects within an answer.

    Raises:
        AnswerError: there is none under this key.
    """
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise AnswerError(f"no list of objects as {key} in {shown(document)}")
    return found


def choice(document: dict[str, Any]) -> dict[str, Any]:
    """The first choice of an answer.

    Raises:
        AnswerError: there is none.
    """
    found = records(document, "choices")
    if not found:
        raise AnswerError(f"no choices in {shown(document)}")
    return found[0]


def completed(document: dict[str, Any]) -> str:
    """The text of a completion, which may be empty.

    Raises:
        AnswerError: there is none.
    """
    text = choice(document).get("text")
    if not isinstance(text, str):
        raise AnswerError(f"no text in {shown(document)}")
    return text


def number(value: object) -> int | None:
    """A count within an answer, or None where it is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 2**53 else None


def usage(document: dict[str, Any], key: str) -> int | None:
    """A count from an answer's usage, or None where the server gives none."""
    counts = document.get("usage")
    return number(counts.get(key)) if isinstance(counts, dict) else None


def _collect(chunks: Iterator[bytes], started: float) -> Streamed:
    """Read events up to [DONE].

    Args:
        started: when the request was sent (`time.monotonic`).

    Raises:
        AnswerError: an event is no JSON, an error or of another form, or [DONE] or the usage never
        came.
    """
    parts: list[str] = []
    stamps: list[float] = []
    count: int | None = None
    for data in sse.events(chunks):
        if data == "[DONE]":
            break
        event = _event(data)
        found = usage(event, "completion_tokens")
        count = count if found is None else found
        text = _piece(event)
        if text:
            parts.append(text)
            stamps.append(time.monotonic() - started)
    else:
        raise AnswerError(f"the stream ended without [DONE] after {len(parts)} chunks")
    if count is None:
        raise AnswerError("the stream has no usage although stream_options asked for it")
    return Streamed("".join(parts), tuple(stamps), count, time.monotonic() - started)


def _piece(event: dict[str, Any]) -> str:
    """The text that an event carries: one of usage alone has no choices."""
    choices = [] if event.get("choices") is None else records(event, "choices")
    texts = [item.get("text") for item in choices]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise AnswerError(f"a text of the stream is none: {shown(event)}")
    return "".join(text or "" for text in texts)


def _event(data: str) -> dict[str, Any]:
    try:
        found = _json(data)
    except ValueError:
        raise AnswerError(f"an event of the stream is no JSON: {shorten(data)!r}") from None
    if not isinstance(found, dict):
        raise AnswerError(f"an event of the stream is no object: {shorten(data)!r}")
    if found.get("error") is not None:
        error = found["error"]
        raise AnswerError(
            f"an error within the stream: "
            f"{shorten(str(error.get('message', error) if isinstance(error, dict) else error))}"
        )
    return found
