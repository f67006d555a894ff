"""Every fault of the scriptable server gives the row that a user can read."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from glm5_deploy.config.models import Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.facts.gpu import NEWER_FIELDS, PLAIN_FIELDS
from glm5_deploy.hosts.host import Host
from glm5_deploy.report.events import Silent
from glm5_deploy.report.outcome import Check
from glm5_deploy.smoke.api import Api
from glm5_deploy.smoke.needle import haystack
from glm5_deploy.smoke.run import run_smoke

from tests.fakes import doctor as fakes

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("faults.yml").read_text()
)
SMOKE = {
    "expect": [{"prompt": "count", "max_tokens": 3, "text": " one two three", "tokens": [1, 2, 3]}],
    "prompt_tokens": 100,
    "attention_backend": "TRITON_MLA_SPARSE",
}
JOURNAL = (
    "INFO [cuda.py:507] Using TRITON_MLA_SPARSE attention backend out of potential backends: [].\n"
)
KEY = Secret("s3cret")
HOST = ("journal", "sudo_allowed", "served", "doctor", "facts")


Smoke = Callable[..., dict[str, Check]]
Server = Callable[..., Target]


@pytest.fixture
def smoke(local_host: type[Any]) -> Smoke:
    """Runs the test against a target and gives the rows by name."""

    def run(target: Target, **more: Any) -> dict[str, Check]:  # noqa: ANN401
        own = {"journal": JOURNAL} | {n: more.pop(n) for n in HOST if n in more}
        host = local_host(**own)
        options = {"api_key": KEY, "request_timeout": 1.0} | more
        rows = run_smoke(cast(Host, host), target, Silent(), **options)
        return {row.name: row for row in rows}

    return run


@pytest.mark.parametrize("fault", CASES)
def test_fault_gives_its_rows(fault: str, serve: Server, smoke: Smoke) -> None:
    case = CASES[fault]
    target = serve("--api-key", KEY.value, "--fault", fault, smoke=SMOKE | case.get("smoke", {}))
    rows = smoke(target, request_timeout=case.get("timeout", 1.0))
    expected = case["rows"]
    if case.get("healthy", True):
        assert {n for n, row in rows.items() if row.status != "passed"} == set(expected)
    else:
        others = {row.status for name, row in rows.items() if name != "health"}
        assert others == {"skipped"}
    for name, text in expected.items():
        assert f"{rows[name].status}: {rows[name].detail}".startswith(text)
    assert all(row.hint for row in rows.values() if row.status == "failed")
    refused = [row for row in rows.values() if "HTTP 401" in row.detail]
    assert all("secrets.VLLM_API_KEY" in (row.hint or "") for row in refused)
    assert not any("Traceback" in row.detail or KEY.value in row.detail for row in rows.values())


def test_non_deterministic(serve: Server, smoke: Smoke) -> None:
    target = serve("--fault", "non-deterministic")
    details = {smoke(target, api_key=None)["greedy twice"].status for _ in range(6)}
    assert "failed" in details


def test_nobody_listens(serve: Server, smoke: Smoke) -> None:
    target = serve()
    closed = target.profile.model_copy(
        update={"serve": target.profile.serve.model_copy(update={"port": 9})}
    )
    rows = smoke(target.model_copy(update={"profile": closed}))
    assert rows["health"].status == "failed"
    assert rows["health"].detail.startswith("no connection: ")
    assert rows["completion"].detail == "the server is not healthy"


def test_what_speaks_no_http_is_told_to_be_that(serve: Server, smoke: Smoke) -> None:
    target = serve()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"-ERR unknown command\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = {"port": listener.getsockname()[1]}
        other = {"serve": target.profile.serve.model_copy(update=port)}
        profile = target.profile.model_copy(update=other)
        row = smoke(target.model_copy(update={"profile": profile}))["health"]
    assert row.status == "failed"
    assert row.detail.startswith("what answers does not speak HTTP (illegal status line")
    assert "-ERR unknown command" in row.detail


def test_without_a_key_its_checks_are_skipped(serve: Server, smoke: Smoke) -> None:
    rows = smoke(serve(), api_key=None)
    assert rows["wrong key refused"].status == "skipped"
    assert rows["missing key refused"].detail == "no API key is set"


def test_profile_without_expectations_skips_with_a_reason(serve: Server, smoke: Smoke) -> None:
    rows = smoke(serve(smoke={"chat": False}), api_key=None)
    assert rows["chat"].detail == "the profile says smoke.chat: false"
    assert rows["long prompt"].status == "skipped"
    assert rows["attention backend"].detail.endswith("the log says TRITON_MLA_SPARSE")


def test_wrong_backend(serve: Server, smoke: Smoke) -> None:
    target = serve("--api-key", KEY.value, smoke=SMOKE)
    journal = JOURNAL.replace("TRITON_MLA_SPARSE", "FLASHMLA")
    row = smoke(target, journal=journal)["attention backend"]
    assert row.detail == "the log says FLASHMLA, expected TRITON_MLA_SPARSE"


KERNEL = "glm5_kernel: attention=TRITON_MLA_SPARSE kv=%s indexer=%s\n"


@pytest.mark.parametrize(
    ("expected", "journal", "hint"),
    [
        ({"kv_cache": "fp8_ds_mla"}, KERNEL % ("fp8_ds_mla", "stock"), None),
        ({"indexer": "triton"}, KERNEL % ("bf16", "triton"), None),
        ({"kv_cache": "fp8_ds_mla"}, KERNEL % ("bf16", "triton"), "kv-cache-dtype"),
        ({"indexer": "triton"}, KERNEL % ("bf16", "stock"), "GLM5_INDEXER"),
        (
            {"indexer": "triton"},
            KERNEL % ("bf16", "stock") + KERNEL % ("bf16", "triton"),
            "GLM5_INDEXER",
        ),
        ({"kv_cache": "bf16"}, JOURNAL, "engine.kernel"),
    ],
)
def test_kv_cache_and_indexer(
    expected: dict[str, str], journal: str, hint: str | None, serve: Server, smoke: Smoke
) -> None:
    row = smoke(serve(smoke=expected), api_key=None, journal=journal)["attention backend"]
    assert row.status == ("passed" if hint is None else "failed")
    assert hint is None or hint in (row.hint or "")


@pytest.mark.parametrize("chat", [True, False])
def test_needles_are_found(chat: bool, serve: Server, smoke: Smoke) -> None:
    wanted = {"chat": chat, "needle": {"tokens": 500}}
    row = smoke(serve(smoke=wanted), api_key=None)["needle"]
    assert row.status == "passed"
    assert row.detail.startswith("found at 10%, 50%, 90% of 5")


def test_the_haystack_holds_its_needle_at_its_depth() -> None:
    for depth, part in ((0, 0), (0.5, 500), (1, 1000)):
        text = haystack(1000, depth, "12345")
        lines = text.split(". ")
        assert lines[part] == "The locker in the station has the number 12345"
        assert len(set(lines)) == 1002


def golden_file(folder: Path, tokens: list[int], **more: Any) -> str:  # noqa: ANN401
    prompts = [{"name": "long", "prompt": [5] * 600, "tokens": tokens}]
    path = folder / "golden.json"
    path.write_text(json.dumps({"format": 1, "prompts": prompts} | more))
    return str(path)


@pytest.mark.parametrize(
    ("tokens", "more", "status", "detail"),
    [
        ([1, 2, 3], {}, "passed", "3 tokens as the reference's, after 600"),
        ([1, 2, 9], {}, "failed", "long (600 tokens): token 3 differs: [3]…, expected [9]…"),
        ([1], {"format": 2}, "failed", "format 2; 1 is right"),
        ([1], {"prompts": []}, "failed", "it holds no prompt"),
        ([], {}, "failed", "or an empty one"),
        ([1], {"prompts": 7}, "failed", "golden.json: "),
    ],
)
def test_golden_tokens(
    tokens: list[int], more: dict[str, Any], status: str, detail: str, serve: Server, smoke: Smoke,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = golden_file(tmp_path, tokens, **more)
    row = smoke(serve(smoke={"golden": path}), api_key=None)["golden tokens"]
    assert row.status == status
    assert detail in row.detail


GPU_HEAD = ",".join((*PLAIN_FIELDS, *NEWER_FIELDS))
STARTED = "5000.0\n1800000000.0\n4000000000\n"
XID = "%s ws kernel: NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n"


def gpu_table(*used: int, ecc: int = 0) -> str:
    rows = [
        f"{i},RTX,GPU-{i},97887,{mib},580.1,00000000:0{i + 1}:00.0,12.0,[N/A],{ecc},Enabled,16,16"
        for i, mib in enumerate(used)
    ]
    return "\n".join([GPU_HEAD, *rows, "", "CUDA Version : 13.0"])


@pytest.mark.parametrize(
    ("facts", "status", "detail"),
    [
        ((gpu_table(90000, 88000), "", STARTED), "passed", "2 × 85.9 to 87.9 of 96 GiB in use"),
        ((gpu_table(90000, 90010), "", STARTED), "passed", "2 × 87.9 of 96 GiB in use, no Xid"),
        ((gpu_table(90000, 88000), XID % "1799990000.0", STARTED), "passed", "2 ×"),
        (
            (gpu_table(90000, 88000), XID % "1799999500.0", STARTED),
            "failed",
            "Xid 79 on GPU 1 since",
        ),
        (
            (gpu_table(90000, 88000, ecc=1), "", STARTED),
            "passed",
            "no Xid, GPU 0 had ECC errors before, GPU 1 had ECC errors before",
        ),
        (
            (gpu_table(90000, 88000, ecc=1), XID % "1799999500.0", STARTED),
            "failed",
            "Xid 79 on GPU 1 since",
        ),
        (
            (gpu_table(90000, 88000, ecc=1), "unreadable", STARTED),
            "failed",
            "GPU 0 has 1 uncorrected ECC errors, and the kernel's log, which would say",
        ),
        (
            (gpu_table(90000, 88000), "unreadable", STARTED),
            "passed",
            "the kernel's log cannot be read here",
        ),
        ((gpu_table(90000, 2), "", STARTED), "failed", "GPU 1 is not used by the server"),
        ((gpu_table(90000), "", STARTED), "failed", "GPU 1 is not used"),
        ((gpu_table(90000), XID % "1799990000.0", STARTED), "failed", "GPU 1 is not used"),
        (
            (gpu_table(90000), XID % "1799999500.0", STARTED),
            "failed",
            "Xid 79 on 0000:02:00, a GPU that no longer answers, since the start: the GPU fell off",
        ),
        (("Failed to initialize NVML", "", STARTED), "failed", "Failed to initialize NVML"),
        ((gpu_table(90000, 88000),), "failed", "cannot gather facts"),
    ],
)
def test_gpus(
    facts: tuple[str, ...], status: str, detail: str, serve: Server, smoke: Smoke
) -> None:
    row = smoke(serve(gpus={"count": 2}), api_key=None, facts=facts)["gpus"]
    assert row.status == status
    assert detail in row.detail


def test_a_log_without_the_line(serve: Server, smoke: Smoke) -> None:
    target = serve("--api-key", KEY.value, smoke=SMOKE)
    row = smoke(target, journal="INFO something else\n")["attention backend"]
    assert row.detail == "the log names no attention backend, expected TRITON_MLA_SPARSE"


def test_unreadable_journal(serve: Server, smoke: Smoke) -> None:
    target = serve("--api-key", KEY.value, smoke=SMOKE)
    row = smoke(target, journal="", sudo_allowed=False)["attention backend"]
    assert (row.status, row.detail) == ("failed", "the journal could not be read")


def test_doctor_says_what_it_tried(serve: Server, smoke: Smoke) -> None:
    full = [fakes.row(name, "skipped", "GPU memory is full") for name in ("merge", "top-k")]
    answer = fakes.document(fakes.row("vLLM"), fakes.row("torch"), *full)
    row = smoke(serve(), api_key=None, doctor=answer)["doctor"]
    assert (row.status, row.detail) == (
        "passed", "vLLM 0.26.0: 2 passed, 2 skipped (GPU memory is full)",
    )  # fmt: skip


def test_doctor_finds_something(serve: Server, smoke: Smoke) -> None:
    wrong = fakes.row("merge", "failed", "error 3e-01, limit 1e-02", "do not serve with it")
    answer = fakes.document(wrong, fakes.row("top-k", "failed", "CompilationError", "report this"))
    row = smoke(serve(), api_key=None, doctor=answer)["doctor"]
    assert row.status == "failed"
    assert row.detail == "merge: error 3e-01, limit 1e-02 (and 1 more)"
    assert row.hint == "do not serve with it"


@pytest.mark.parametrize(
    ("target", "host", "detail"),
    [
        ({"kernel": False}, {}, "the profile installs no glm5-kernel (engine.kernel)"),
        ({}, {"sudo_allowed": False}, "it runs as the service's user, which takes sudo"),
        (
            {},
            {"served": fakes.served(kernel=False)},
            "the release that is served has no glm5-kernel",
        ),
        ({}, {"served": fakes.served(venv=None)}, "the release that is served has no glm5-kernel"),
    ],
)
def test_doctor_is_skipped(
    target: dict[str, Any], host: dict[str, Any], detail: str, serve: Server, smoke: Smoke
) -> None:
    row = smoke(serve(**target), api_key=None, **host)["doctor"]
    assert (row.status, row.detail) == ("skipped", detail)


def test_doctor_that_does_not_answer(serve: Server, smoke: Smoke) -> None:
    row = smoke(serve(), api_key=None, doctor="Segmentation fault")["doctor"]
    assert row.status == "failed"
    assert row.detail == "bw1: the doctor gave no answer (status 0): Segmentation fault"
    assert row.hint is not None


def test_prompt_longer_than_the_model_takes(serve: Server, smoke: Smoke) -> None:
    rows = smoke(serve("--max-model-len", "64", smoke=SMOKE), api_key=None)
    assert rows["long prompt"].detail == "106 tokens do not fit into max_model_len 64"


def test_no_tokenizer_is_given_a_long_text(
    serve: Server, smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, texts = Api.post, []

    def noted(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
        texts.append(str(body["prompt"]) if path == "/tokenize" else "")
        return post(api, path, body)

    monkeypatch.setattr(Api, "post", noted)
    row = smoke(serve(smoke={"prompt_tokens": 2000}), api_key=None)["long prompt"]
    assert (row.status, row.detail) == ("passed", "2000 tokens")
    assert 0 < max(len(text) for text in texts) < 100


def test_a_log_that_names_no_backend_is_not_quoted(serve: Server, smoke: Smoke) -> None:
    row = smoke(serve(), api_key=None, journal="INFO something else\n")["attention backend"]
    assert (row.status, row.detail) == ("skipped", "the profile expects none")


def test_deadline_in_the_past(serve: Server, smoke: Smoke) -> None:
    rows = list(smoke(serve(), deadline=time.monotonic() - 1).values())
    assert rows[0].status == "failed"
    assert {row.status for row in rows[1:]} == {"skipped"}


def test_wrong_tokens_name_the_first_difference(serve: Server, smoke: Smoke) -> None:
    expect = [{"prompt": "count", "max_tokens": 3, "tokens": [1, 7, 3]}]
    row = smoke(serve(smoke={"expect": expect}), api_key=None)["expected answer 1"]
    assert row.detail == "token 2 differs: [2, 3]…, expected [7, 3]…"


def test_wildcard_bind_is_dialled_as_loopback(serve: Server, smoke: Smoke) -> None:
    assert smoke(serve(serve_host="0.0.0.0"), api_key=None)["health"].status == "passed"


def test_speed_of_an_answer_that_arrives_at_once_does_not_pass_falsely(
    serve: Server, smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = serve("--token-seconds", "0.01", smoke={"min_tokens_per_second": 150})
    whole = httpx.Response.iter_bytes

    def at_once(response: httpx.Response) -> Iterator[bytes]:
        yield b"".join(whole(response))

    monkeypatch.setattr(httpx.Response, "iter_bytes", at_once)
    row = smoke(target, api_key=None)["speed"]
    assert row.status == "failed"
    assert "tokens/s over the whole request; at least 150.0 tokens/s is wanted" in row.detail


def test_speed_where_the_model_is_too_short_for_a_timed_answer(serve: Server, smoke: Smoke) -> None:
    row = smoke(serve("--max-model-len", "32"), api_key=None)["speed"]
    assert row.status == "passed"
    assert row.detail.endswith("tokens/s over the whole request")
