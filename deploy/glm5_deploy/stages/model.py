"""The model's files: present, complete and right by their SHA-256, without reading 400 GB twice."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any

from glm5_deploy.hosts.command import Command, Secret, command
from glm5_deploy.stages.arguments import filled
from glm5_deploy.stages.change import Change, Copy, Put, Rsync, Step, Transient
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.manifest import Manifest
from glm5_deploy.stages.observed import FileState, Observed
from glm5_deploy.stages.system import python_path
from glm5_deploy.stages.systemd import environment_file

STAGE = "model"


def host_manifest(desired: Desired, observed: Observed) -> Manifest | None:
    """The manifest that counts: the profile's, else the one that was made on the host.

    One that is not what the profile signs counts for nothing.
    """
    if desired.manifest is not None:
        return desired.manifest
    text, signed = observed.deployment.model_manifest, desired.target.profile.model.manifest_sha256
    if text is None:
        return None
    from glm5_deploy.stages.manifest import parse_manifest

    found = parse_manifest(text, f"{desired.target.name}:{desired.paths.manifest}")
    return found if signed in {None, found.key()} else None


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
    """Bring what is missing, verify what was not verified as it lies there now."""
    files = observed.deployment.model_files or {}
    manifest = host_manifest(desired, observed)
    if manifest is None:
        return [bring(desired, observed, checksum=False) or verification(desired, observed)]
    lacking = incomplete(manifest, files)
    if lacking:
        brought = bring(desired, observed, checksum=False, detail=f"{len(lacking)} files")
        return [] if brought is None else [brought]
    if stamp_holds(observed.deployment.model_stamp, manifest, files):
        return []
    if desired.target.profile.model.fetch is not None:
        return [verification(desired, observed)]
    brought = bring(desired, observed, checksum=True, detail="compared by content")
    return [brought or verification(desired, observed)]


def bring(
    desired: Desired, observed: Observed, *, checksum: bool, detail: str = ""
) -> Change | None:
    """Have the files come and verify them; None where the profile says nothing of where from.

    Args:
        checksum: compare contents where files seem to be there already.
        detail: why.
    """
    spec, manifest = desired.target.profile.model, host_manifest(desired, observed)
    if spec.source is not None and manifest is not None:
        return _sync(desired, observed, manifest, detail, checksum=checksum)
    if spec.source_host is not None:
        return _copy(desired, observed, detail or f"from {spec.source_host}", checksum=checksum)
    if spec.fetch is not None:
        return _fetch(desired, observed, spec.fetch, manifest)
    return None


def verification(desired: Desired, observed: Observed) -> Change:
    """Read every file, against the manifest that counts; where there is none, one is made."""
    files = observed.deployment.model_files or {}
    manifest = host_manifest(desired, observed)
    if manifest is None:
        return _adopt(desired, observed)
    steps = (*_manifest(desired, observed, manifest), _verify(desired, observed))
    return Change(STAGE, "verify", str(desired.paths.model), _size(files), steps)


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


def _copy(desired: Desired, observed: Observed, detail: str, *, checksum: bool) -> Change:
    """From another host, straight to this one."""
    spec, paths = desired.target.profile.model, desired.paths
    assert spec.source_host is not None  # asked before
    step = Copy(
        peer=spec.source_host,
        name=spec.name,
        source=spec.source_path,
        address=spec.source_address,
        target=paths.model,
        unit=f"glm5-job-copy-{spec.name}",
        limit=desired.target.profile.limits.sync,
        manifest=desired.manifest,
        signed=spec.manifest_sha256,
        checksum=checksum,
        python=python_path(desired, observed),
        deliver=paths.library / "deliver.py",
        scratch=paths.uploads,
        manifest_path=paths.manifest,
    )
    return Change(STAGE, "sync", str(paths.model), detail, (step, _verify(desired, observed)))


def _fetch(
    desired: Desired, observed: Observed, words: list[str], manifest: Manifest | None
) -> Change:
    """By the profile's command, as the login user; a manifest is made of what came first."""
    paths, spec, limits = desired.paths, desired.target.profile.model, desired.target.profile.limits
    places = {"{folder}": str(paths.model)}
    if desired.venv is not None:
        places["{venv}"] = str(paths.venv(desired.venv.identifier))
    argv = [filled(word, places) for word in words]
    mark = hashlib.sha256("\0".join(argv).encode()).hexdigest()[:8]
    secrets = paths.state / f"fetch-{spec.name}.env" if desired.fetch_secrets else None
    run = command(
        python_path(desired, observed), paths.library / "deliver.py", paths.model,
        sum(manifest.sizes.values()) if manifest else 0, "", "--", *argv,
        env=spec.fetch_environment,
    )  # fmt: skip
    job = Transient(
        f"glm5-job-fetch-{spec.name}-{mark}", run, limits.sync,
        user=observed.system.machine.user, secrets=secrets,
        hidden=tuple(desired.fetch_secrets.values()),
    )  # fmt: skip
    known = () if manifest is None else _manifest(desired, observed, manifest)
    steps: tuple[Step, ...] = (
        *_secret_file(desired, secrets),
        job,
        *known,
        _verify(desired, observed, *([] if manifest else ["--create"])),
    )
    return Change(STAGE, "sync", str(paths.model), f"by {PurePosixPath(argv[0]).name}", steps)


def _secret_file(desired: Desired, path: PurePosixPath | None) -> tuple[Step, ...]:
    if path is None:
        return ()
    values = {name: secret.value for name, secret in desired.fetch_secrets.items()}
    return (Put(path, Secret(environment_file(values)), mode=0o600),)


def _adopt(desired: Desired, observed: Observed) -> Change:
    """Files that came without a manifest: make one, so that later damage is seen."""
    files = observed.deployment.model_files or {}
    steps = (_verify(desired, observed, "--create"),)
    if observed.deployment.model_manifest is not None:
        detail = "the manifest there is not the signed one"
        return Change(STAGE, "create", str(desired.paths.manifest), detail, steps)
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
    paths, signed = desired.paths, desired.target.profile.model.manifest_sha256
    return command(
        python_path(desired, observed), paths.library / "verify.py",
        paths.model, paths.manifest, paths.stamp, *flags,
        *([] if signed is None else ["--signed", signed]),
    )  # fmt: skip


def _size(files: dict[str, FileState]) -> str:
    total = sum(state.size for state in files.values())
    return f"{len(files)} files, {total / 1e9:.1f} GB"
