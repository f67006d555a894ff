"""Preflight of `engine.base`: the vLLM that a host brings itself."""

from __future__ import annotations

from glm5_deploy.config.models import Base
from glm5_deploy.hosts.facts.base import BaseFacts
from glm5_deploy.report.outcome import Check
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed
from glm5_deploy.stages.system import OLDEST_PYTHON

NAME = "base"


def rows(desired: Desired, observed: Observed) -> tuple[Check, ...]:
    """One row where the profile names a base, else none."""
    base = desired.target.profile.engine.base
    if base is None:
        return ()
    facts = observed.base or BaseFacts(problem="it was not asked")
    wrong = _problem(base, facts, desired)
    if wrong is not None:
        return (Check(NAME, "failed", *wrong),)
    versions = facts.versions or {}
    shown = ", ".join(f"{name} {versions[name]}" for name in sorted(versions))
    number = ".".join(map(str, facts.version))
    return (Check(NAME, "passed", f"{base.python}, Python {number}: {shown}"),)


def _problem(base: Base, facts: BaseFacts, desired: Desired) -> tuple[str, str] | None:
    """What is wrong, and what would be right."""
    if facts.problem is not None:
        return f"{base.python}: {facts.problem}", "correct engine.base.python"
    number = ".".join(map(str, facts.version))
    if facts.version < OLDEST_PYTHON:
        return f"{base.python} is Python {number}", "vLLM needs Python 3.10 or later"
    if facts.absent:
        return f"no such folder: {', '.join(facts.absent)}", "correct engine.base.site"
    if "vllm" not in (facts.versions or {}):
        where = ", ".join(map(str, base.site)) or "no further folder"
        hint = "install vLLM there, name its folder in engine.base.site, or use engine.lock"
        return f"{base.python} has no vLLM (looked in its own packages and {where})", hint
    if desired.target.profile.needs.compiler and not facts.headers:
        hint = "install them, or set needs.compiler: false where nothing is compiled at run time"
        return f"{base.python} (Python {number}) lacks its C headers, which Triton needs", hint
    return None
