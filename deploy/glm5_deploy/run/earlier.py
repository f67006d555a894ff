"""An earlier release as a target: its unit, port and model may be others than today's."""

from __future__ import annotations

from glm5_deploy.config.models import Profile, Target
from glm5_deploy.hosts.host import Host
from glm5_deploy.stages.observed import Paths
from glm5_deploy.stages.record import Record, RecordError, parse_record


def as_it_was(host: Host, target: Target, release: str) -> Target:
    """The target with the release's own profile; limits and tests are today's.

    Raises:
        CommandFailedError: the release's record is missing.
        RecordError: it cannot be read.
    """
    path = Paths.of(target).release(release) / "profile.json"
    where = f"{host.name}:{path}"
    record = parse_record(host.get(path).decode(errors="replace"), where)
    try:
        profile = profile_of(record, target.profile)
    except ValueError as error:
        raise RecordError(where, str(error)) from error
    return target.model_copy(update={"profile": profile})


def profile_of(record: Record, today: Profile) -> Profile:
    """A profile from a release's own record; what the record leaves out is taken from today's.

    Raises:
        ValueError: it is no profile of this version of the program.
    """
    found = Profile.model_validate(
        {
            **record.profile,
            "smoke": today.smoke,
            "limits": today.limits,
            "needs": today.needs,
            "secrets": today.secrets,
        }
    )
    if found.model.name == today.model.name:
        return found
    # What one model answers says nothing of another.
    return found.model_copy(update={"smoke": today.smoke.model_copy(update={"expect": []})})
