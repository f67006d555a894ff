"""The benchmark of one host: refuse early, run it there in a unit of its own, judge the results."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from glm5_deploy.bench.plan import Load, Wanted, loads
from glm5_deploy.bench.result import Results, rows
from glm5_deploy.bench.served import JOB, Served, ask, invocation, read_served
from glm5_deploy.config.address import bracketed, dial_address
from glm5_deploy.config.models import Target
from glm5_deploy.config.numbers import whole
from glm5_deploy.errors import CommandFailedError, ExitCode, PreflightError
from glm5_deploy.hosts.command import Command, Secret, command
from glm5_deploy.hosts.host import Host
from glm5_deploy.onhost import program
from glm5_deploy.report.events import Events
from glm5_deploy.report.outcome import Check, ErrorReport, HostOutcome
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.run.jobs import end_job, run_job
from glm5_deploy.stages.change import Transient
from glm5_deploy.stages.observed import Paths

_BESIDE = 300
"""Seconds beside the loads: importing vLLM from a cold disk, and ending a load."""


@dataclass
class BenchRun:
    """Measures one host."""

    host: Host
    target: Target
    api_key: Secret | None
    wanted: Wanted
    events: Events
    cancel: Cancel
    results: Results = field(default_factory=Results)

    def run(self) -> HostOutcome:
        """Measure every load; what was measured is in the outcome also where others failed.

        Raises:
            PreflightError: nothing that could be measured is served here.
            CommandFailedError: the program on the host ended before its first load.
        """
        self.events.stage(self.host.name, "bench")
        served = read_served(self.host, self.target)
        answering = ask(self.host, self.target, self.api_key)
        chosen = loads(self.wanted, answering.room)
        job = self.job(served, chosen)
        self._alone(job, served)
        if answering.busy and job.unit not in served.benchmarks:
            text = f"the server has {answering.busy} requests of others: the figures tell of both"
            self.events.note(self.host.name, text)
        self._tell_room(chosen)
        self._carry_out(job, len(chosen))
        return self._outcome(served)

    def job(self, served: Served, chosen: Sequence[Load]) -> Transient:
        """The unit: its name follows from what is measured, so that a second run joins it."""
        paths = Paths.of(self.target)
        words = self._command(served, chosen)
        text = "\0".join((served.release, served.invocation, *words.argv))
        mark = hashlib.sha256(text.encode()).hexdigest()[:12]
        release = paths.release(served.release)
        return Transient(
            f"{JOB}{mark}", words, self.wanted.limit + _BESIDE, self.target.profile.unit.user,
            secrets=release / "secrets", variables=release / "environment", collect=True,
        )  # fmt: skip

    def _command(self, served: Served, chosen: Sequence[Load]) -> Command:
        profile = self.target.profile
        address = bracketed(dial_address(profile.serve.host))
        told = profile.serve.options
        options: list[str] = []
        if told.get("tokenizer-mode"):
            options += ["--tokenizer-mode", str(told["tokenizer-mode"])]
        if told.get("trust-remote-code"):
            options += ["--trust-remote-code"]
        return command(
            served.python, Paths.of(self.target).library / "bench.py",
            "--url", f"http://{address}:{profile.serve.port}", "--model", profile.served_model_name,
            "--tokenizer", str(told.get("tokenizer") or tokenizer_folder(self.target)),
            "--answer", self.wanted.output_tokens, "--seconds", self.wanted.limit,
            "--loads", ",".join(load.word() for load in chosen),
            "--alone", Paths.of(self.target).library,
            *(["--", *options] if options else []),
        )  # fmt: skip

    def _alone(self, job: Transient, served: Served) -> None:
        """Two at once would measure each other.

        Raises:
            PreflightError: another one runs.
        """
        others = [unit for unit in served.benchmarks if unit != job.unit]
        if others:
            raise PreflightError(
                f"another benchmark runs here: {others[0]}",
                f"wait for it, or end it on the host: systemctl stop {others[0]}",
            )

    def _tell_room(self, chosen: Sequence[Load]) -> None:
        most = whole("max-num-seqs", self.target.profile.serve.options.get("max-num-seqs"))
        asked = chosen[-1].concurrency
        if most is not None and asked > most:
            text = (
                f"of {asked} requests at once {most} are worked on (max-num-seqs): the others wait"
            )
            self.events.note(self.host.name, text)

    def _carry_out(self, job: Transient, count: int) -> None:
        name = self.host.name

        def progress(text: str, fraction: float | None) -> None:
            # What vLLM says beside our program's own lines stays in the journal.
            if not self.results.take(text) and fraction is not None:
                self.events.progress(name, text, fraction)

        self.host.put(program("bench.py"), Paths.of(self.target).library / "bench.py", mode=0o755)
        try:
            run_job(
                self.host, job, cancel=self.cancel, progress=progress,
                note=lambda text: self.events.note(name, text),
            )  # fmt: skip
        except InterruptedRunError:
            end_job(self.host, job.unit)
            raise
        except CommandFailedError:
            # Of two who follow the same one, the first to see its end clears the unit away.
            if len(self.results.loads) < count:
                raise

    def _outcome(self, served: Served) -> HostOutcome:
        name, smoke = self.host.name, self.target.profile.smoke
        checks = rows(self.results.loads, smoke, self.wanted.limit, name)
        error = self._restarted(served) or _error(self.results, checks)
        return HostOutcome(
            name,
            "failed" if error else "unchanged",
            release=served.release,
            checks=checks,
            error=error,
            data=self.results.to_json(),
        )

    def _restarted(self, served: Served) -> ErrorReport | None:
        """Figures of two servers, or of one that was loading, are of neither."""
        if invocation(self.host, self.target) == served.invocation:
            return None
        return ErrorReport(
            "the server ended or was started again meanwhile: the figures are not of one server",
            f"glm5-deploy logs --host {self.host.name} --explain; then measure again",
        )


def _error(results: Results, checks: Sequence[Check]) -> ErrorReport | None:
    """A load that failed outweighs a floor that was missed: it was not measured right."""
    broken = [each.name for each in results.loads if each.status == "failed"]
    if broken:
        return ErrorReport(f"requests failed: {', '.join(broken)}")
    if not any(each.status == "measured" for each in results.loads):
        return ErrorReport("nothing was measured", "raise --limit, or ask for fewer --requests")
    slow = [each.name for each in checks if each.status == "failed"]
    if slow:
        return ErrorReport(
            f"slower than the profile wants: {', '.join(slow)}", None, ExitCode.SMOKE_FAILED
        )
    return None


def tokenizer_folder(target: Target) -> PurePosixPath:
    """Where vLLM finds the tokenizer: beside a file that is served, or in the folder."""
    model = target.model_folder / target.profile.model.serve
    return model.parent if model.suffix == ".gguf" else model
