"""The model's files: present, complete and right by their SHA-256, without reading 400 GB twice."""

from __future__ import annotations

from typing import Any

from glm5_deploy.hosts.command import Command, command
from glm5_deploy.stages.change import Change, Put, Rsync, Step, Transient
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.manifest import Manifest
from glm5_deploy.stages.observed import FileState, Observed
from glm5_deploy.stages.system import python_path

STAGE = "model"


def host_manifest(desired: Desired, observed: Observed) -> Manifest | None:
    """The manifest that counts: the profile's, else the one that was made on the host."""
    if desired.manifest is not None:
        return desired.manifest
    text = observed.deployment.model_manifest
    if text is None:
        return None
    from glm5_deploy.stages.manifest import parse_manifest

    return parse_manifest(text, f"{desired.target.name}:{desired.paths.manifest}")


def incomplete(manifest: Manifest, files: dict[str, FileState]) -> tuple[str, ...]:
    """Names that the host lacks or has in another size."""
    return tuple(
        name
        for name in sorted(manifest.entries)
        if name not in files or files[name].size != manifest.sizes.get(name, files[name].size)
    )


def stamp_holds(
    stamp: dict[str, Any] | None, manifest: Manifest, files: dict[str, FileState]
) -> bool:
    """Whether every file is as it was when its digest was last found right."""
    if stamp is None or stamp.get("manifest") != manifest.key():
        return False
    marks = stamp.get("files", {})
    return all(name in files and marks.get(name) == _mark(files[name]) for name in manifest.entries)


def _mark(state: FileState) -> list[int]:
    return [state.size, state.mtime, state.ctime, state.inode]


def plan(desired: Desired, observed: Observed) -> list[Change]:
    """Sync what is missing, verify what was not verified as it lies there now."""
    files = observed.deployment.model_files or {}
    manifest = host_manifest(desired, observed)
    if manifest is None:
        return [_adopt(desired, observed)]
    lacking = incomplete(manifest, files)
    source = desired.target.profile.model.source
    if source is None:
        return [] if lacking else _verification(desired, observed, manifest, files)
    if lacking:
        return [_sync(desired, observed, manifest, f"{len(lacking)} files", checksum=False)]
    if stamp_holds(observed.deployment.model_stamp, manifest, files):
        return []
    return [_sync(desired, observed, manifest, "compared by content", checksum=True)]


def _verification(
    desired: Desired, observed: Observed, manifest: Manifest, files: dict[str, FileState]
) -> list[Change]:
    if stamp_holds(observed.deployment.model_stamp, manifest, files):
        return []
    steps = (*_manifest(desired, observed, manifest), _verify(desired, observed))
    return [Change(STAGE, "verify", str(desired.paths.model), _size(files), steps)]


def _sync(
    desired: Desired, observed: Observed, manifest: Manifest, detail: str, *, checksum: bool
) -> Change:
    source = desired.target.profile.model.source
    if source is None:
        raise ValueError("a profile without model.source has nothing to sync")
    steps = (
        Rsync(source, desired.paths.model, tuple(sorted(manifest.entries)), checksum=checksum),
        *_manifest(desired, observed, manifest),
        _verify(desired, observed),
    )
    return Change(STAGE, "sync", str(desired.paths.model), detail, steps)


def _adopt(desired: Desired, observed: Observed) -> Change:
    """Files that came without a manifest: make one, so that later damage is seen."""
    files = observed.deployment.model_files or {}
    steps = (_verify(desired, observed, "--create"),)
    detail = f"no manifest yet; {_size(files)}"
    return Change(STAGE, "create", str(desired.paths.manifest), detail, steps)


def _manifest(desired: Desired, observed: Observed, manifest: Manifest) -> tuple[Step, ...]:
    if observed.deployment.model_manifest == manifest.text():
        return ()
    return (Put(desired.paths.manifest, manifest.text().encode()),)


def _verify(desired: Desired, observed: Observed, *flags: str) -> Transient:
    name = f"glm5-job-verify-{desired.target.profile.model.name}"
    return Transient(
        name, verify_command(desired, observed, *flags), limit=desired.target.profile.limits.sync
    )


def verify_command(desired: Desired, observed: Observed, *flags: str) -> Command:
    """Read and hash every file of the manifest on the host."""
    paths = desired.paths
    return command(
        python_path(desired, observed), paths.library / "verify.py",
        paths.model, paths.manifest, paths.stamp, *flags,
    )  # fmt: skip


def _size(files: dict[str, FileState]) -> str:
    total = sum(state.size for state in files.values())
    return f"{len(files)} files, {total / 1e9:.1f} GB"
