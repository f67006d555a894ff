"""The command line of the doctor, and how it goes about it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from glm5_kernel.doctor import environment
from glm5_kernel.doctor.child import children_end_with_it, run_child
from glm5_kernel.doctor.gpus import capability_check, gpu_check, gpus_of, torch_check
from glm5_kernel.doctor.registering import parts_of, registration_checks, vllm_check
from glm5_kernel.doctor.report import ABSENT, Report
from glm5_kernel.doctor.table import render
from glm5_kernel.doctor.testing import self_tests

TIMEOUT = 240
"""Seconds: a first run compiles every kernel, on a host whose disk may be cold."""
LONGEST = 86_400


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 0 where nothing failed, else 1."""
    options = _parser().parse_args(argv)
    report = examine(options.timeout)
    if options.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        print(render(report, shutil.get_terminal_size((100, 24)).columns))
    return 0 if report.ok else 1


def examine(limit: float = TIMEOUT) -> Report:
    """Look at everything, within about `limit` seconds."""
    until = time.monotonic() + limit
    with ThreadPoolExecutor(1) as pool, children_end_with_it():
        registering = pool.submit(run_child, ["register"], limit)
        versions = environment.versions()
        seen = run_child(["gpus"], limit)
        gpus = gpus_of(seen, environment.free_memory())
        tested = self_tests(gpus, max(until - time.monotonic(), 1.0), run_child)
        registered = registering.result()
    checks = [
        torch_check(versions["torch"], seen),
        vllm_check(versions["vllm"]),
        environment.entry_point(),
    ]
    # Without a vLLM there is nothing to register with: one row says so.
    if versions["vllm"] != ABSENT:
        checks += registration_checks(registered)
    checks += [
        gpu_check(
            seen,
            gpus,
            devices_there=environment.devices_are_there(),
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        ),
        capability_check(gpus),
        environment.compiler(needed=bool(gpus)),
    ]
    return Report(versions, gpus, parts_of(registered), (*checks, *tested))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m glm5_kernel doctor",
        description="Say what this host has, what vLLM will use of glm5-kernel and why, and whether"
        " each kernel computes what its reference does on the GPUs that are there.",
        epilog="Exit code 0: nothing failed. 1: a row failed. Without a GPU the rows about kernels"
        " are skipped, which is no failure.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--timeout", type=_seconds, default=TIMEOUT, metavar="SECONDS",
        help="end a test that is not done by then (default %(default)s)",
    )  # fmt: skip
    return parser


def _seconds(text: str) -> float:
    wrong = argparse.ArgumentTypeError(f"{text}: 1 to {LONGEST} are right")
    try:
        value = float(text)
    except ValueError:
        raise wrong from None
    # "not" so that nan is refused too.
    if not 1 <= value <= LONGEST:
        raise wrong
    return value


if __name__ == "__main__":
    sys.exit(main())
