#!/usr/bin/env python3
"""``glm5-deploy up`` beside the same work in Ansible and pyinfra, on hosts booted for it.

    .venv/bin/python benchmarks/orchestrator.py [--rounds 5] [--noops 2] [--hosts 1,3] [--save]

Every round, each program in turn (the order shifts from round to round) gets hosts with nothing
on them, deploys to them (``first``) and then deploys again (``noop``); a second deployment that
changes anything ends the benchmark. A round before the measured ones warms caches and counts SSH
connections and sessions, by the hosts' own sshd. Processor time, here and on the hosts, is measured
beside the clock's: it says more where other work runs on the machine. Results are written after
each round. Needs root, as the end-to-end tests do.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "deploy")]

from glm5_deploy.demo.bed import Bed, BedHost  # noqa: E402

from benchmarks.contenders import BenchmarkError, Contender, Outcome, Site, contenders  # noqa: E402
from benchmarks.measure import machine, save, summary, versions  # noqa: E402
from tests.e2e.conftest import RESET  # noqa: E402

VENVS = CHECKOUT / "build" / "benchmark"
LEFTOVERS = "userdel glm5; rm -rf /root/.ansible /root/.cache /tmp/pyinfra* /tmp/*; exit 0"
COUNTED = {"connections": "Accepted publickey", "sessions": "Starting session:"}

Runs = dict[tuple[str, int, str], list[Outcome]]
"""By program, number of hosts, and ``first`` or ``noop``."""


def reset(hosts: Sequence[BedHost]) -> None:
    """Take everything away that any of the programs leaves, uv's cache too."""
    for host in hosts:
        host.exec(["sh", "-c", RESET])
        host.exec(["sh", "-c", LEFTOVERS])


def log_sessions(host: BedHost, *, on: bool) -> None:
    """Make sshd log each session, or stop it."""
    path = "/etc/ssh/sshd_config.d/verbose.conf"
    if on:
        host.exec(["tee", path], input="LogLevel VERBOSE\n")
    else:
        host.exec(["rm", "-f", path])
    host.exec(["systemctl", "reload", "ssh"])


def seen(host: BedHost) -> dict[str, int]:
    """How many SSH connections and sessions a host has had."""
    said = host.exec(["journalctl", "--no-pager", "-q", "-o", "cat", "_COMM=sshd"]).stdout
    return {name: said.count(text) for name, text in COUNTED.items()}


def deploy(contender: Contender, hosts: Sequence[BedHost], *, noop: bool) -> Outcome:
    """One run.

    Raises:
        BenchmarkError: a first deployment that changed nothing, or a second one that did.
    """
    before = processor(hosts[0].bed)
    outcome = contender.run([host.name for host in hosts])
    if bool(outcome.changed) == noop:
        raise BenchmarkError(f"{contender.name}: {outcome.changed} changes, noop is {noop}")
    return replace(outcome, processor=processor(hosts[0].bed) - before)


def processor(bed: Bed) -> float:
    """Seconds of processor time that ended children of ours and all hosts have had."""
    here = resource.getrusage(resource.RUSAGE_CHILDREN)
    stat = (bed.cgroups()[-1] / "cpu.stat").read_text().split()
    return here.ru_utime + here.ru_stime + int(stat[stat.index("usage_usec") + 1]) / 1e6


def count(contender: Contender, hosts: Sequence[BedHost]) -> dict[str, Any]:
    """Connections and sessions of the first host, in a first deployment and in one more."""
    reset(hosts)
    found: dict[str, Any] = {}
    for host in hosts:
        log_sessions(host, on=True)
    for what, noop in (("first", False), ("noop", True)):
        before = seen(hosts[0])
        outcome = deploy(contender, hosts, noop=noop)
        after = seen(hosts[0])
        found[what] = {name: after[name] - before[name] for name in COUNTED}
        trips = outcome.details.get("round_trips")
        if trips:
            found[what]["round_trips"] = trips[hosts[0].name]
    for host in hosts:
        log_sessions(host, on=False)
    return found


def measure(
    programs: Sequence[Contender], hosts: Sequence[BedHost], runs: Runs, noops: int
) -> None:
    """One round: every program, first deployment and no-ops."""
    for program in programs:
        reset(hosts)
        for what in ("first", *["noop"] * noops):
            outcome = deploy(program, hosts, noop=what == "noop")
            runs[program.name, len(hosts), what].append(outcome)
            say(
                f"{len(hosts)} host(s), {program.name}, {what}: {outcome.seconds:.2f} s, "
                f"processor {outcome.processor:.2f} s"
            )


def ratios(medians: dict[tuple[str, int, str], float], ours: str) -> dict[str, dict[str, float]]:
    """Our median over each other program's: ``noop/3`` → ``pyinfra`` → 0.4."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, hosts, what), median in medians.items():
        if name != ours:
            found[f"{what}/{hosts}"][name] = round(medians[ours, hosts, what] / median, 3)
    return dict(found)


def figures(runs: Runs, ours: str, field: str) -> dict[str, Any]:
    """Medians and all values of one field of the outcomes, with ratios."""
    nested: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    medians = {}
    for (name, hosts, what), outcomes in runs.items():
        row = summary([getattr(outcome, field) for outcome in outcomes])
        nested[what][str(hosts)][name] = row
        medians[name, hosts, what] = row["median"]
    return {"values": nested, "ratios": ratios(medians, ours)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def benchmark(bed: Bed, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds on a booted bed; gives the results' document."""
    programs = contenders(Site.make(folder, bed), VENVS)
    groups = [list(bed.hosts.values())[:number] for number in options.hosts]
    document: dict[str, Any] = {
        "machine": machine(),
        "versions": {program.name: program.version for program in programs},
        "packages": versions("paramiko", "uv", "typer", "pydantic"),
        "ssh_one_host": {p.name: count(p, list(bed.hosts.values())[:1]) for p in programs},
    }
    runs: Runs = defaultdict(list)
    for number in range(options.rounds):
        shift = number % len(programs)
        for group in groups:
            measure(programs[shift:] + programs[:shift], group, runs, options.noops)
        document["rounds"] = number + 1
        for field in ("seconds", "processor"):
            document[field] = figures(runs, programs[0].name, field)
        if options.save:
            say(f"written: {save('orchestrator', document)}")
    return document


def table(document: dict[str, Any], field: str) -> str:
    """The medians as a Markdown table."""
    values = document[field]["values"]
    columns = [(what, hosts) for what in values for hosts in values[what]]
    head = f"| {field} | " + " | ".join(f"{w}, {h} host(s)" for w, h in columns) + " |"
    rows = [head, "|---" * (len(columns) + 1) + "|"]
    for name, version in document["versions"].items():
        cells = [f"{values[w][h][name]['median']:.2f}" for w, h in columns]
        rows.append(f"| {name} {version} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="glm5-deploy up beside Ansible and pyinfra")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--noops", type=int, default=2, help="no-op runs after each first one")
    parser.add_argument(
        "--hosts", type=lambda text: [int(word) for word in text.split(",")], default=[1, 3]
    )
    parser.add_argument("--save", action="store_true", help="write results/orchestrator.json")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are taken down then too
    with tempfile.TemporaryDirectory(prefix="glm5-benchmark-", dir="/var/tmp") as name:
        bed = Bed(Path(name) / "bed")
        bed.up([f"node{number + 1}" for number in range(max(options.hosts))])
        try:
            document = benchmark(bed, Path(name) / "site", options)
        finally:
            bed.down()
    for field in ("seconds", "processor"):
        print(table(document, field))
        print(f"ratios: {document[field]['ratios']}")
    print(f"over SSH, one host: {document['ssh_one_host']}")


if __name__ == "__main__":
    main()
