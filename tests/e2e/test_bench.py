"""``bench`` on a real host: refused early, measured, joined, interrupted; never the key in argv.

What it measures with is a stand-in for vLLM's benchmark; the demo's test has the real one.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import CHECKOUT, Cli, CliResult, reset
from tests.e2e.deployment import API_KEY, UNIT, Deployment, eventually, set_faults

STAND_IN = CHECKOUT / "tests" / "fakes" / "vllm_bench.py"
PACKAGE = {
    "vllm/__init__.py": b'__version__ = "0.26.0"\n',
    "vllm/benchmarks/__init__.py": b"",
    "vllm/benchmarks/serve.py": STAND_IN.read_bytes(),
}
JOB = "glm5-job-bench-"
LOADS = ("--concurrency", "1,3", "--prompt-tokens", "20", "--output-tokens", "8")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, bed: Bed) -> Iterator[Deployment]:
    """One for all tests here; the first of them deploys it."""
    host = reset(bed.hosts["node1"])
    set_faults(host)
    made = Deployment(tmp_path_factory.mktemp("bench") / "site", bed)
    made.lock("1.0", PACKAGE)
    made.profile["smoke"] |= {"min_tokens_per_second": 10, "max_ttft_seconds": 30}
    yield made
    set_faults(host)


@pytest.fixture
def host(deployment: Deployment) -> BedHost:
    found = deployment.bed.hosts["node1"]
    set_faults(found)
    return found


def bench(cli: Cli, deployment: Deployment, *words: str, expect: int = 0) -> CliResult:
    inventory = deployment.write()
    more = words or LOADS
    return cli("bench", "-i", inventory, *more, env=deployment.environment, expect=expect)


def outcome(result: CliResult) -> dict[str, Any]:
    found: dict[str, Any] = result.json["hosts"]["node1"]
    return found


def jobs(host: BedHost, *more: str) -> list[str]:
    """Units of benchmarks that systemd knows, ended ones too."""
    words = ["systemctl", "list-units", "--all", "--plain", "--no-legend", *more]
    return [line.split()[0] for line in host.exec([*words, f"{JOB}*"]).stdout.splitlines()]


def measuring(host: BedHost) -> bool:
    return bool(jobs(host, "--state=running"))


def test_it_measures_what_is_served_and_nothing_else(
    cli: Cli, deployment: Deployment, host: BedHost
) -> None:
    refused = bench(cli, deployment, expect=1)
    assert "nothing is deployed here" in refused.output
    assert "→ glm5-deploy up --host node1" in refused.output
    cli("up", "-i", deployment.write(), env=deployment.environment, expect=0)

    shown = bench(cli, deployment)
    assert "TTFT" in shown.stdout
    assert "measured" in shown.stdout
    found = outcome(bench(cli, deployment, *LOADS, "--json"))
    assert (found["status"], found["vllm"]) == ("unchanged", "0.26.0")
    assert [(load["concurrency"], load["status"]) for load in found["loads"]] == [
        (1, "measured"), (3, "measured"),
    ]  # fmt: skip
    assert [(row["name"], row["status"]) for row in found["checks"]] == [
        ("one stream", "passed"), ("first token", "passed"),
    ]  # fmt: skip
    assert jobs(host) == []
    said = shown.output + json.dumps(found) + host.exec(["journalctl", "--no-pager"]).stdout
    assert API_KEY not in said

    host.exec(["systemctl", "stop", UNIT])
    stopped = bench(cli, deployment, expect=1)
    assert f"{UNIT} is stopped" in stopped.output
    host.exec(["systemctl", "start", UNIT])
    eventually(lambda: answers(cli, deployment))


def answers(cli: Cli, deployment: Deployment) -> bool:
    inventory = deployment.write()
    return cli("status", "-i", inventory, env=deployment.environment).returncode == 0


def test_a_server_that_is_too_slow_or_fails_is_told(
    cli: Cli, deployment: Deployment, host: BedHost
) -> None:
    deployment.profile["smoke"]["min_tokens_per_second"] = 1_000_000
    slow = bench(cli, deployment, expect=4)
    assert "tokens/s after the first, at least 1e+06 wanted" in " ".join(slow.output.split())
    deployment.profile["smoke"]["min_tokens_per_second"] = 10
    set_faults(host, "generation-fails")
    found = outcome(bench(cli, deployment, *LOADS, "--json", expect=1))
    assert found["error"]["message"] == "requests failed: 1 × 20, 3 × 20"
    assert found["loads"][0]["error"] == "4 of 4 requests failed: Internal Server Error"


SLOW = ("--concurrency", "1", "--prompt-tokens", "20", "--output-tokens", "40", "--requests", "4")


def test_a_benchmark_outlives_its_operator(cli: Cli, deployment: Deployment, host: BedHost) -> None:
    set_faults(host, "slow")
    gone = cli.start("bench", "-i", deployment.write(), *SLOW, env=deployment.environment)
    eventually(lambda: measuring(host))
    assert API_KEY not in host.exec(["ps", "-eo", "args"]).stdout
    os.killpg(gone.pid, signal.SIGKILL)
    gone.communicate()
    other = bench(cli, deployment, expect=1)
    assert f"another benchmark runs here: {JOB}" in other.output
    joined = bench(cli, deployment, *SLOW)
    assert f"joined {JOB}" in joined.output
    assert "measured" in joined.stdout

    # One that ended while nobody looked: its results are there.
    gone = cli.start("bench", "-i", deployment.write(), *SLOW, env=deployment.environment)
    eventually(lambda: measuring(host))
    os.killpg(gone.pid, signal.SIGKILL)
    gone.communicate()
    set_faults(host)
    eventually(lambda: not measuring(host))
    collected = bench(cli, deployment, *SLOW)
    assert f"took what {JOB}" in collected.output
    assert "measured" in collected.stdout
    assert jobs(host) == []


def test_ctrl_c_ends_the_load_on_the_host(cli: Cli, deployment: Deployment, host: BedHost) -> None:
    set_faults(host, "slow")
    process = cli.start("bench", "-i", deployment.write(), *SLOW, env=deployment.environment)
    eventually(lambda: measuring(host))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert not measuring(host)
    assert jobs(host) == []


def test_the_limit_leaves_out_what_is_not_done(
    cli: Cli, deployment: Deployment, host: BedHost
) -> None:
    set_faults(host, "slow")
    words = ("--concurrency", "1,2", "--prompt-tokens", "20", "--output-tokens", "20")
    more = ("--requests", "500", "--limit", "4", "--json")
    found = outcome(bench(cli, deployment, *words, *more, expect=1))
    assert [load["status"] for load in found["loads"]] == ["stopped", "skipped"]
    assert found["error"]["message"] == "nothing was measured"
    assert {row["status"] for row in found["checks"]} == {"warning"}
    assert not measuring(host)
