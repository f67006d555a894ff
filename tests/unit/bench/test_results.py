"""What the program on the host prints, judged by a profile, and shown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from glm5_deploy.bench.result import Results, rows
from glm5_deploy.bench.table import print_results
from glm5_deploy.cli.bench import _whole
from glm5_deploy.config.models import Smoke
from glm5_deploy.report.outcome import HostOutcome
from rich.console import Console


def line(concurrency: int, prompt: int, status: str = "measured", **more: Any) -> str:  # noqa: ANN401
    document: dict[str, Any] = {
        "concurrency": concurrency, "prompt_tokens": prompt, "output_tokens": 128, "requests": 4,
        "status": status,
    }  # fmt: skip
    if status == "measured":
        document |= {
            "completed": 4,
            "seconds": 12.34567,
            "tokens_per_second": 41.4747,
            "total_tokens_per_second": 363.5,
            "ttft_ms": {"median": 250.0 + prompt / 10, "p99": 400.4},
            "tpot_ms": {"median": 25.0, "p99": 31.04},
        }
    return f"RESULT {json.dumps(document | more)}"


def results(*lines: str) -> Results:
    found = Results()
    assert all(found.take(each) for each in lines)
    return found


def checks(found: Results, **smoke: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401
    judged = rows(found.loads, Smoke.model_validate(smoke), 900, "bw1")
    return [(row.name, row.status, row.detail) for row in judged]


def test_lines_are_collected() -> None:
    found = Results()
    assert not found.take("PROGRESS 0.5 load 2/2")
    assert not found.take("INFO something of vLLM's")
    assert found.take('RESULT {"vllm": "0.26.0", "seed": 7, "began": 1.23456}')
    assert found.take(line(1, 1000))
    assert found.take(line(8, 1000, "stopped", error="not done in the 3 s that were left for it"))
    document = found.to_json()
    assert (document["vllm"], document["began"]) == ("0.26.0", 1.235)
    first, second = document["loads"]
    assert (first["seconds"], first["error"], first["ttft_ms"]["median"]) == (12.346, None, 350.0)
    assert (second["status"], second["error"][:8]) == ("stopped", "not done")
    assert json.loads(json.dumps(document)) == document


def test_without_limits_nothing_is_judged() -> None:
    assert checks(results(line(1, 1000), line(8, 1000))) == []


@pytest.mark.parametrize(
    ("smoke", "expected"),
    [
        ({"min_tokens_per_second": 40}, [("one stream", "passed"), ("one stream", "passed")]),
        ({"min_tokens_per_second": 40.1}, [("one stream", "failed"), ("one stream", "failed")]),
        ({"max_ttft_seconds": 0.35}, [("first token", "passed")]),
        ({"max_ttft_seconds": 0.34}, [("first token", "failed")]),
    ],
)
def test_limits_are_for_one_stream(
    smoke: dict[str, float], expected: list[tuple[str, str]]
) -> None:
    # 8 at once are slower for each of them, which no limit is for.
    found = results(line(1, 8000), line(1, 1000), line(8, 500))
    assert [row[:2] for row in checks(found, **smoke)] == expected


def test_the_rows_say_figures_and_limits() -> None:
    judged = checks(results(line(1, 1000)), min_tokens_per_second=50, max_ttft_seconds=2)
    assert judged == [
        ("one stream", "failed", "1 × 1000: 40.0 tokens/s after the first, at least 50 wanted"),
        ("first token", "passed", "1 × 1000: first token after 0.350 s, at most 2 s wanted"),
    ]


def test_what_was_not_measured_is_a_row() -> None:
    found = results(
        line(1, 1000, "failed", error="4 of 4 requests failed: Bad Request", completed=0),
        line(8, 1000, "stopped", error="not done in the 3 s that were left for it"),
        line(64, 1000, "skipped", error="no time was left for it"),
    )
    assert checks(found, min_tokens_per_second=50) == [
        ("1 × 1000", "failed", "4 of 4 requests failed: Bad Request"),
        ("8 × 1000", "warning", "not done in the 3 s that were left for it"),
        ("64 × 1000", "warning", "no time was left for it"),
    ]
    hints = {row.hint for row in rows(found.loads, Smoke(), 900, "bw1")}
    assert hints == {
        "glm5-deploy logs --host bw1 --explain", "--limit 1800, or fewer --requests"
    }  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    found = results(line(1, 1000), line(64, 8000, "skipped"))
    print_results(console, "bw1", found.loads)
    text = stream.getvalue().splitlines()
    assert all(len(each) <= max(width, 80) for each in text)
    assert text[0] == "bw1"
    assert " ".join(text[1].split()) == (
        "at once prompt requests tokens/s in + out TTFT p99 TPOT p99"
    )
    assert text[3].split() == ["1", "1000", "4", "41.5", "363.5", "350", "400", "25.0", "31.0"]
    assert text[4].split() == ["64", "8000", "4", "skipped"]


def test_a_load_of_which_some_requests_failed_shows_no_figures_and_is_not_judged() -> None:
    partly = line(1, 1000, "measured", error="2 of 4 requests failed: no", completed=2)
    found = results(partly.replace('"status": "measured"', '"status": "failed"'))
    stream = io.StringIO()
    print_results(Console(file=stream, width=80), "bw1", found.loads)
    assert stream.getvalue().splitlines()[3].split() == ["1", "1000", "4", "failed"]
    assert [name for name, *_ in checks(found, min_tokens_per_second=1)] == ["1 × 1000"]


def test_what_was_measured_before_the_end_is_kept() -> None:
    lost = HostOutcome("bw1", "unreachable", data={"round_trips": 7})
    assert _whole(lost, Results()) is lost
    kept = _whole(lost, results(line(1, 1000))).to_json()
    assert (kept["status"], kept["round_trips"]) == ("unreachable", 7)
    assert [load["status"] for load in kept["loads"]] == ["measured"]
