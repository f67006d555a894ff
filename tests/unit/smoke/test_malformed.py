"""Servers that answer with something else than vLLM would: every check is a row that says what
answered, never an error of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Silent
from glm5_deploy.report.outcome import Check
from glm5_deploy.smoke.run import run_smoke
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Rows = Callable[..., dict[str, Check]]
Answer = Callable[[httpx.Request], httpx.Response]

MODELS = {"data": [{"id": "tiny"}]}
TOKENS = {"count": 900, "max_model_len": 4096, "tokens": [1, 2, 3]}
CHOICE = {"text": " one", "message": {"content": " one"}, "token_ids": [1]}
LOGPROBS = {"token_logprobs": [-0.5], "top_logprobs": [{" one": -0.5}]}
WHOLE = {"choices": [CHOICE | {"logprobs": LOGPROBS}], "usage": {"prompt_tokens": 100}}
EVENTS = (
    'data: {"choices": [{"text": " one"}]}\n\n'
    'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n'
    "data: [DONE]\n\n"
)


def event_stream(text: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)


def sound(request: httpx.Request) -> httpx.Response:
    """A server with which every check passes, but for the doctor."""
    if request.url.path == "/health":
        return httpx.Response(200)
    if request.url.path == "/v1/models":
        return httpx.Response(200, json=MODELS)
    if request.url.path == "/tokenize":
        return httpx.Response(200, json=TOKENS)
    if json.loads(request.content).get("stream"):
        return event_stream(EVENTS)
    return httpx.Response(200, json=WHOLE)


def instead(path: str, answer: httpx.Response, *, stream: bool = False) -> Answer:
    """The sound server, with one kind of request answered otherwise."""

    def handle(request: httpx.Request) -> httpx.Response:
        streamed = request.method == "POST" and b'"stream"' in request.content
        return answer if request.url.path == path and streamed is stream else sound(request)

    return handle


@pytest.fixture
def rows(
    local_host: type[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Answer], dict[str, Check]]:
    """Runs the smoke test against what answers so, and gives its rows by name."""
    golden = tmp_path / "golden.json"
    prompts = [{"name": "long", "prompt": [5], "tokens": [1]}]
    golden.write_text(json.dumps({"format": 1, "prompts": prompts}))
    smoke = {
        "max_tokens": 1, "prompt_tokens": 100, "needle": {"tokens": 500, "depths": [0.5]},
        "golden": str(golden), "expect": [{"prompt": "count", "text": " one", "tokens": [1]}],
    }  # fmt: skip
    profile = Profile.model_validate({"name": "tiny", "model": {"name": "tiny"}, "smoke": smoke})
    target = Target(name="bw1", settings=HostSettings(), profile=profile)

    def run(answer: Answer) -> dict[str, Check]:
        def client(*_: object) -> httpx.Client:
            return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")

        monkeypatch.setattr("glm5_deploy.smoke.run.client_for", client)
        found = run_smoke(cast(Host, local_host()), target, Silent(), api_key=None)
        return {row.name: row for row in found}

    return run


def failed(found: dict[str, Check]) -> dict[str, str]:
    return {name: row.detail for name, row in found.items() if row.status == "failed"}


def test_the_sound_server_fails_nothing_but_the_needle(rows: Rows) -> None:
    assert list(failed(rows(sound))) == ["needle"]


def answered(**fields: object) -> httpx.Response:
    return httpx.Response(200, json=fields)


DEEP = "[" * 100_000
COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("path", "answer", "row", "detail"),
    [
        ("/v1/models", answered(data=5), "model list", 'no list of objects as data in {"data": 5}'),
        ("/v1/models", answered(data=["tiny"]), "model list", "no list of objects as data in"),
        ("/v1/models", answered(), "model list", "no list of objects as data in {}"),
        (
            "/v1/models",
            httpx.Response(200, json=["tiny"]),
            "model list",
            "no JSON object but application/json: '[\"tiny\"]'",
        ),
        ("/v1/models", httpx.Response(200, text=DEEP), "model list", "no JSON but text/plain: '[["),
        ("/v1/models", httpx.Response(500, text=DEEP), "model list", "HTTP 500: text/plain: '[[["),
        (
            "/v1/models",
            httpx.Response(200, headers={"content-type": "text/html; charset=hex"}, content=b"<p>"),
            "model list",
            "no JSON but text/html: '<p>'",
        ),
        (COMPLETIONS, answered(choices={"a": 1}), "completion", "no list of objects as choices in"),
        (COMPLETIONS, answered(choices=[]), "completion", 'no choices in {"choices": []}'),
        (COMPLETIONS, answered(choices=[{}]), "greedy twice", 'no text in {"choices": [{}]}'),
        (COMPLETIONS, answered(choices=[{}]), "expected answer 1", "no text in"),
        (COMPLETIONS, answered(choices=[{"text": 7}]), "stream", "no text in"),
        (COMPLETIONS, answered(choices=[{"text": 7}]), "concurrency", "4 of 4 failed: no text in"),
        (
            COMPLETIONS,
            answered(choices=[CHOICE | {"logprobs": {"token_logprobs": 5}}]),
            "log-probabilities",
            'log-probabilities of another form: {"token_logprobs": 5}',
        ),
        (
            COMPLETIONS,
            answered(choices=[CHOICE | {"logprobs": LOGPROBS | {"top_logprobs": [[-1]]}}]),
            "log-probabilities",
            "log-probabilities of another form",
        ),
        (
            COMPLETIONS,
            answered(choices=[CHOICE | {"logprobs": LOGPROBS | {"token_logprobs": [-(10**400)]}}]),
            "log-probabilities",
            "log-probability 1 of 1 is -1000000",
        ),
        (
            "/v1/chat/completions",
            answered(choices=[{"message": {"content": [{"type": "text"}]}}]),
            "chat",
            'the answer holds no text but [{"type": "text"}]',
        ),
        ("/tokenize", answered(tokens="abc"), "long prompt", '/tokenize gives {"tokens": "abc"}'),
        ("/tokenize", answered(tokens=[None]), "long prompt", "/tokenize gives"),
        ("/tokenize", answered(**TOKENS | {"count": 10**400}), "needle", "48213, at 50% of"),
        ("/tokenize", answered(**TOKENS | {"count": -5}), "needle", "48213, at 50% of"),
    ],
)
def test_the_row_says_what_answered(
    path: str, answer: httpx.Response, row: str, detail: str, rows: Rows
) -> None:
    assert failed(rows(instead(path, answer)))[row].startswith(detail)


def streamed(text: object) -> str:
    return f"data: {json.dumps({'choices': text})}\n\n" + EVENTS


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (streamed(5), 'no list of objects as choices in {"choices": 5}'),
        (streamed("abc"), "no list of objects as choices in"),
        (streamed([None]), "no list of objects as choices in"),
        (streamed([{"text": 7}]), 'a text of the stream is none: {"choices": [{"text": 7}]}'),
        (f"data: {DEEP}\n\n", "an event of the stream is no JSON: '[["),
        ("data: 7\n\n", "an event of the stream is no object: '7'"),
        (
            EVENTS.replace("1}", "true}"),
            "the stream has no usage although stream_options asked for it",
        ),
    ],
)
def test_a_stream_of_another_form(text: str, detail: str, rows: Rows) -> None:
    answer = instead(COMPLETIONS, event_stream(text), stream=True)
    found = failed(rows(answer))
    assert found["stream"].startswith(detail)
    assert found["speed"].startswith(detail)


def test_what_others_send_in_streams_is_taken(rows: Rows) -> None:
    """An error that is none, and no choices where the usage comes."""
    text = EVENTS.replace('{"choices": [{', '{"error": null, "choices": [{')
    text = text.replace('"choices": []', '"choices": null')
    found = rows(instead(COMPLETIONS, event_stream(text), stream=True))
    assert found["stream"].detail == "1 chunks, 1 tokens"


@pytest.mark.parametrize("name", ["server", "content-type"])
def test_a_header_that_is_no_ascii(name: str, rows: Rows) -> None:
    headers = [(name.encode(), "text/html; café".encode("latin-1"))]
    answer = httpx.Response(200, headers=headers, content=b"<p>")
    assert "<p>" in failed(rows(instead("/v1/models", answer)))["model list"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([10**400, -5]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data", "id", "choices", "text", "message", "content", "logprobs", "error",
                    "token_logprobs", "top_logprobs", "token_ids", "usage", "prompt_tokens",
                    "completion_tokens", "tokens", "count", "max_model_len", "detail",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ANYTHING, ANYTHING, st.sampled_from([200, 200, 200, 404, 500]))
def test_whatever_answers_is_told(rows: Rows, document: Any, event: Any, status: int) -> None:  # noqa: ANN401
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        if b'"stream"' in request.content:
            return event_stream(f"data: {json.dumps(event)}\n\n{EVENTS}")
        return httpx.Response(status, text=json.dumps(document))

    assert "stream" in rows(answer)
