from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.hosts.fake import FakeHost
from glm5_deploy.report.columns import middle
from glm5_deploy.status.metrics import Load, parse_load, rate
from glm5_deploy.status.probe import (
    Gpu,
    Snapshot,
    outcome,
    parse_gpu,
    parse_probe,
    read_load,
    unreachable,
)
from glm5_deploy.status.table import Row, status_table
from rich.console import Console

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="glm 5 {x}"} 2.0
vllm:num_requests_running{engine="1",model_name="glm 5 {x}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="glm"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:generation_tokens_total{engine="0",model_name="glm"} 1.234e+03
vllm:generation_tokens_created{engine="0",model_name="glm"} 1.7e+09
"""
PROBE = """\
releases/3f2a9c1b77d0
--glm5--
NRestarts=2
LoadState=loaded
ActiveState=active
SubState=running
ActiveEnterTimestampMonotonic=1000000000
--glm5--
4600.25 9000.00
--glm5--
0, NVIDIA RTX PRO 6000 Blackwell, 71000, 97887, 93
1, NVIDIA RTX PRO 6000 Blackwell, [N/A], 97887, 0
"""


def test_metrics_are_added_up_over_engines() -> None:
    assert parse_load(METRICS, 7.0) == Load(3, 4, 1234.0, 7.0)


@pytest.mark.parametrize("text", ["", "<html>", "python_gc_objects_collected_total 3.0\n"])
def test_metrics_of_something_else(text: str) -> None:
    assert parse_load(text, 0.0) is None


def test_something_else_with_a_charset_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(200, headers={"content-type": "text/html; charset=hex"}, content=b"<p>")

    def client(*_: object) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(lambda _: answer), base_url="http://it")

    monkeypatch.setattr("glm5_deploy.smoke.transport.client_for", client)
    profile = Profile.model_validate({"name": "p", "model": {"name": "m"}})
    target = Target(name="node1", settings=HostSettings(), profile=profile)
    assert read_load(cast(Any, FakeHost()), target) is None


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Load(1, 0, 100.0, 1.0), Load(1, 0, 150.0, 3.0), 25.0),
        (Load(1, 0, 100.0, 1.0), Load(1, 0, 5.0, 3.0), None),
        (Load(1, 0, 100.0, 1.0), Load(1, 0, 100.0, 1.0), None),
        (None, Load(1, 0, 5.0, 3.0), None),
    ],
)
def test_rate(before: Load | None, now: Load, expected: float | None) -> None:
    assert rate(before, now) == expected


def test_probe() -> None:
    found = parse_probe(PROBE)
    assert found.release == "3f2a9c1b77d0"
    assert (found.known, found.active, found.restarts, found.uptime) == (True, "active", 2, 3600.25)
    assert found.gpus[0] == Gpu(0, "NVIDIA RTX PRO 6000 Blackwell", 71000, 97887, 93)
    assert found.gpus[1].used is None


def test_probe_of_a_bare_host() -> None:
    found = parse_probe(
        "--glm5--\nLoadState=not-found\nActiveState=inactive\n--glm5--\n1 1\n--glm5--\n"
    )
    assert found == Snapshot(active="inactive")
    row = outcome("bw1", found)
    assert row.error is not None
    assert row.error.message == "not deployed: there is no unit"
    assert row.error.hint == "glm5-deploy up --host bw1"


@pytest.mark.parametrize("line", ["", "Failed to initialize NVML: Driver mismatch", "No devices"])
def test_no_gpu_in_an_error_message(line: str) -> None:
    assert parse_gpu(line) is None


@pytest.mark.parametrize(
    ("active", "health", "message"),
    [
        ("active", 200, None),
        ("active", 503, "/health answers 503"),
        ("active", None, "the unit runs, but nothing answers /health yet"),
        ("failed", None, "the unit is failed (dead)"),
        ("inactive", None, "stopped"),
    ],
)
def test_outcome(active: str, health: int | None, message: str | None) -> None:
    row = outcome("bw1", Snapshot(known=True, active=active, sub="dead", health=health))
    assert (row.error and row.error.message) == message
    assert row.to_json()["ok"] is (message is None)
    if row.error is not None:
        after_down = "glm5-deploy up --host bw1"
        explained = "glm5-deploy logs --host bw1 --explain"
        assert row.error.hint == (after_down if active == "inactive" else explained)


GPUS = tuple(Gpu(index, "x", 71000, 97887, 90) for index in range(8))
BUSY = Snapshot(
    "3f2a9c1b77d0", True, "active", "running", 1, 7300.0, 200, "glm-5", GPUS,
    Load(12, 3, 1.0, 1.0), 1234.5,
)  # fmt: skip


def drawn(*rows: Row, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False).print(status_table(rows, width))
    text = stream.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def test_table_fits_80_columns() -> None:
    text = drawn(
        (outcome("bw1", BUSY), BUSY),
        (unreachable("bw2", "no route to host", None), None),
        (outcome("bw3", Snapshot()), Snapshot()),
    )
    for part in ("3f2a9c1b77d0", "active ×1", "2 h", "12+3", "1234.5", "unreachable", "8× 555/765"):
        assert part in text


@pytest.mark.parametrize("name", ["10.89.219.10", "inference-eu-west-1.rack7.example.com"])
@pytest.mark.parametrize("width", [60, 80])
def test_names_are_never_broken_over_lines(name: str, width: int) -> None:
    busy = replace(BUSY, model="acme/tiny-alphabet-instruct")
    lines = drawn((outcome(name, busy), busy), width=width).splitlines()
    assert len(lines) == 3
    shown = lines[2].split()[0]
    assert shown == middle(name, len(shown))
    assert len(shown) >= min(len(name), 14)
    assert "12+3" in lines[2]


def test_columns_that_say_nothing_are_left_out() -> None:
    idle = replace(BUSY, gpus=(), load=None, rate=None)
    head = drawn((outcome("bw1", idle), idle)).splitlines()[0]
    assert head.split() == ["host", "model", "release", "unit", "up", "health"]
