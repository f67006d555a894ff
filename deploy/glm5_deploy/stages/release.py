"""The release: unit, environment, secrets and profile in a folder that is named by their hash."""

from __future__ import annotations

from glm5_deploy.hosts.command import Secret, script
from glm5_deploy.stages.change import Change, Put, Run, Step
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed

STAGE = "release"

# Other units that ours names may have faults of their own: only what is said about ours counts.
# What the service's user may not read (a model under /root) would show only after the switch.
_FINISH = """
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT
cp -- "$1/unit" "$folder/$2"
said=$(LC_ALL=C systemd-analyze verify --man=no "$folder/$2" 2>&1 | grep -F -- "$2" || :)
[ -z "$said" ] || { printf '%s\\n' "$said" >&2; exit 1; }
release=$1 user=$3 model=$4; shift 4
denied() { echo "user $user cannot read $1" >&2; exit 1; }
for path in "$model" "$@"; do runuser -u "$user" -- test -r "$path" || denied "$path"; done
cd /
found=$(runuser -u "$user" -- find -L "$model" ! -readable -print -quit 2>/dev/null)
[ -z "$found" ] || denied "$found"
: > "$release/.done"
"""


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Write the release unless a finished one of this name is there."""
    release = desired.release
    if release.identifier in observed.deployment.releases and not edited(desired, observed):
        return []
    folder, user = desired.paths.release(release.identifier), desired.target.profile.unit.user
    venv = None if desired.venv is None else desired.paths.venv(desired.venv.identifier)
    base = desired.target.profile.engine.base
    programs = [] if venv is None else [venv / "bin" / "python"]
    programs += [] if base is None else base.site
    steps: tuple[Step, ...] = (
        *(Put(folder / file.name, _bytes(file.content), mode=file.mode) for file in release.files),
        Run(script(_FINISH, folder, desired.paths.unit, user, desired.paths.model, *programs)),
    )
    detail = f"profile {desired.target.profile.name}"
    return [Change(STAGE, "create", release.identifier, detail, steps)]


def edited(desired: Desired, observed: Observed) -> bool:
    """Whether somebody changed the files of the release that is current."""
    deployed, release = observed.deployment, desired.release
    return deployed.current == release.identifier and any(
        deployed.file(desired.paths.current / name) not in {None, release.text(name)}
        for name in ("unit", "environment")
    )


def _bytes(content: str | Secret) -> bytes | Secret:
    return content if isinstance(content, Secret) else content.encode()
