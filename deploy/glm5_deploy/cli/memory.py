"""``plan --memory``: how a model fills the GPUs of each host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_deploy.cli.runner import Fleet, Job, finish

if TYPE_CHECKING:
    from glm5_deploy.memory.measured import Measured
    from glm5_deploy.memory.plan import MemoryPlan
    from glm5_deploy.report.outcome import HostOutcome


def show_memory(fleet: Fleet) -> None:
    """Plan for every host, print a table for each and leave with the exit code."""
    from glm5_deploy.memory.table import print_plan

    plans: dict[str, tuple[MemoryPlan, Measured | None]] = {}

    def work(job: Job) -> HostOutcome:
        made, told, outcome = _plan(job)
        if made is not None:
            plans[job.target.name] = made, told
        return outcome

    report = fleet.run(work)
    if not fleet.json:
        for outcome in report.hosts:
            if outcome.host in plans:
                print_plan(outcome.host, *plans[outcome.host])
    finish(report, json=fleet.json)


def _plan(job: Job) -> tuple[MemoryPlan | None, Measured | None, HostOutcome]:
    from glm5_deploy.memory.check import NotPlannedError, memory_plan, row_of
    from glm5_deploy.memory.measured import Measured, measured_on
    from glm5_deploy.memory.table import as_data
    from glm5_deploy.report.outcome import ErrorReport, HostOutcome
    from glm5_deploy.stages.observed import observe

    observed = observe(job.host, job.target)
    try:
        made = memory_plan(job.host, job.target, observed, job.peer)
    except NotPlannedError as error:
        missing = ErrorReport(f"no memory plan: {error.message}", error.hint)
        return None, None, HostOutcome(job.target.name, "failed", error=missing)
    row, told = row_of(made), None
    if observed.unit.active and observed.deployment.current:
        told = measured_on(job.host, job.target.profile.unit_name)
        told = None if told == Measured() else told
    problem = None if made.fits else ErrorReport(row.detail, row.hint)
    outcome = HostOutcome(
        job.target.name,
        "unchanged" if made.fits else "failed",
        error=problem,
        data={"memory": {**as_data(made), "planned_over_measured": told and told.ratios(made)}},
    )
    return made, told, outcome
