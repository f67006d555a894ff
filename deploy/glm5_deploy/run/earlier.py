"""An earlier release as a target: its unit, port and model may be others than today's."""

from __future__ import annotations

import json
from typing import Any

from glm5_deploy.config.models import Profile, Target
from glm5_deploy.errors import Glm5Error
from glm5_deploy.hosts.host import Host
from glm5_deploy.stages.observed import Paths

_OURS = ("venv", "model_sha256", "secret_names")


def as_it_was(host: Host, target: Target, release: str) -> Target:
    """The target with the release's own profile; limits and tests are today's.

    Raises:
        Glm5Error: the release's record is missing or cannot be read.
    """
    path = Paths.of(target).release(release) / "profile.json"
    try:
        document = json.loads(host.get(path).decode())
        return target.model_copy(update={"profile": profile_of(document, target.profile)})
    except (ValueError, OSError) as error:
        raise Glm5Error(f"the release's own profile cannot be read: {error}") from error


def profile_of(document: dict[str, Any], today: Profile) -> Profile:
    """A profile from a release's own record; what the record leaves out is taken from today's.

    Raises:
        ValueError: it is no profile of this version of the program.
    """
    kept = {name: value for name, value in document.items() if name not in _OURS}
    smoke = today.smoke
    if kept.get("model", {}).get("name") != today.model.name:
        smoke = smoke.model_copy(update={"expect": []})
    return Profile.model_validate(
        {
            **kept,
            "smoke": smoke,
            "limits": today.limits,
            "needs": today.needs,
            "secrets": today.secrets,
        }
    )
