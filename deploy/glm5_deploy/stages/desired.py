"""What a host should have: everything that can be known here, before the host is asked.

Local files are read and secrets resolved when this is built; after that, planning is pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from glm5_deploy.config.models import Base, Profile, Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.stages.arguments import engine_words
from glm5_deploy.stages.manifest import Manifest
from glm5_deploy.stages.observed import Paths
from glm5_deploy.stages.systemd import environment_file
from glm5_deploy.stages.templates import render

_PLACEHOLDER = "@release@"
_VENV_FORMAT = "1"
_DELIVERY = (
    "source", "source_host", "source_path", "source_address", "fetch", "fetch_environment",
    "fetch_secrets", "manifest", "manifest_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Venv:
    """An environment, named by what goes into it.

    Args:
        lock_name: the file's name, and `lock` its content; empty where it is layered on `base`.
        base: the host's own vLLM that it is layered on, or None.
    """

    identifier: str
    lock_name: str
    lock: bytes
    python: str
    wheel: Path | None
    wheelhouse: Path | None
    index_url: str | None
    base: Base | None = None


@dataclass(frozen=True)
class ReleaseFile:
    """One file of a release."""

    name: str
    content: str | Secret
    mode: int = 0o644


@dataclass(frozen=True)
class Release:
    """A release, named by the hash of all its files."""

    identifier: str
    files: tuple[ReleaseFile, ...]

    def text(self, name: str) -> str:
        """The content of a file that holds no secret."""
        content = next(file.content for file in self.files if file.name == name)
        if isinstance(content, Secret):
            raise TypeError(f"{name} is secret")
        return content


@dataclass(frozen=True)
class Desired:
    """All of what one host should be."""

    target: Target
    venv: Venv | None
    release: Release
    manifest: Manifest | None
    operator: str = ""
    fetch_secrets: dict[str, Secret] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)

    @property
    def paths(self) -> Paths:
        return Paths.of(self.target)


def build_desired(
    target: Target,
    *,
    resolve_secret: Callable[[str], Secret],
    kernel_wheel: Callable[[], Path],
    manifest: Callable[[Target], Manifest | None],
    operator: str = "",
) -> Desired:
    """Read locks, wheels and manifests, resolve secrets and render the release.

    Raises:
        UsageError: a lock, wheel or manifest is missing, or a value cannot be written as it is.
    """
    venv = _venv(target, kernel_wheel)
    secrets = {name: resolve_secret(ref) for name, ref in target.profile.secrets.items()}
    wanted, fetching = manifest(target), target.profile.model.fetch_secrets
    hidden = {name: resolve_secret(reference) for name, reference in fetching.items()}
    release = _release(target, venv, secrets, wanted)
    return Desired(target, venv, release, wanted, operator, hidden, secrets)


def _venv(target: Target, kernel_wheel: Callable[[], Path]) -> Venv | None:
    from glm5_deploy.config.locks import lock_path

    engine, settings = target.profile.engine, target.settings
    if engine.base is not None:
        return _layered(target, engine.base, kernel_wheel() if engine.kernel else None)
    if engine.lock is None:
        return None
    path = lock_path(engine.lock)
    lock = path.read_bytes()
    wheel = kernel_wheel() if engine.kernel else None
    parts = [_VENV_FORMAT.encode(), lock, engine.python.encode(), str(settings.python).encode()]
    if wheel is not None:
        parts.append(wheel.read_bytes())
    return Venv(
        _digest(*parts),
        path.name,
        lock,
        engine.python,
        wheel,
        settings.wheelhouse,
        settings.index_url,
    )


def _layered(target: Target, base: Base, wheel: Path | None) -> Venv:
    """Ours on top of the host's: a newer vLLM there is seen without a new environment."""
    parts = [_VENV_FORMAT.encode(), b"base", *(str(p).encode() for p in (base.python, *base.site))]
    if wheel is not None:
        parts.append(wheel.read_bytes())
    python = target.profile.engine.python
    return Venv(_digest(*parts), "", b"", python, wheel, None, None, base)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:12]


def interpreter(target: Target) -> PurePosixPath:
    """The Python that is used on the host where a profile has no environment of its own."""
    engine = target.profile.engine
    if engine.base is not None:
        return engine.base.python
    return target.settings.python or PurePosixPath(f"/usr/bin/python{engine.python}")


def service_environment(target: Target) -> dict[str, str]:
    """The service's variables: every cache below the folders that systemd makes for it, then the
    profile's.
    """
    name = target.profile.unit_name.removesuffix(".service")
    state, cache = f"/var/lib/{name}", f"/var/cache/{name}"
    caches = {
        "HOME": state,
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": f"{state}/config",
        "HF_HOME": f"{cache}/huggingface",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_CONFIG_ROOT": f"{state}/vllm",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch-extensions",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "DG_JIT_CACHE_DIR": f"{cache}/deep-gemm",
        "NUMBA_CACHE_DIR": f"{cache}/numba",
    }
    fixed = {"PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return {**caches, **fixed, **_devices(target), **target.profile.environment}


def _devices(target: Target) -> dict[str, str]:
    gpus = target.profile.gpus
    if gpus.count == 0:
        return {}
    # Indices, since UUIDs crash some vLLM releases (vllm#41848).
    indices = gpus.devices if gpus.devices is not None else range(gpus.count)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, indices))}


def _protect_home(target: Target, paths: Paths) -> str:
    homes, base = ("/home", "/root", "/run/user"), target.profile.engine.base
    read = [paths.root, paths.model, *([] if base is None else [base.python, *base.site])]
    inside = any(path.is_relative_to(home) for path in read for home in homes)
    return "read-only" if inside else "yes"


def _describe(profile: Profile, venv: Venv | None, manifest: Manifest | None) -> str:
    """What the server is made of; what only tests and limits are for restarts nothing."""
    ours = {"smoke", "limits", "needs", "description", "secrets"}
    document = profile.model_dump(mode="json", exclude=ours)
    document["engine"].pop("lock")  # the environment's name says what it holds, wherever it lay
    for key in _DELIVERY:  # how files came is no part of what they are
        document["model"].pop(key)
    document["secret_names"] = sorted(profile.secrets)
    document["venv"] = None if venv is None else venv.identifier
    signed = profile.model.manifest_sha256
    document["model_sha256"] = signed if manifest is None else manifest.key()
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _release(
    target: Target, venv: Venv | None, secrets: dict[str, Secret], manifest: Manifest | None
) -> Release:
    from glm5_deploy.errors import UsageError

    paths, profile = Paths.of(target), target.profile
    venv_path = None if venv is None else paths.venv(venv.identifier)
    try:
        unit = render(
            "server.service.j2",
            profile=profile,
            release=_PLACEHOLDER,
            folder=paths.release(_PLACEHOLDER),
            name=profile.unit_name.removesuffix(".service"),
            served_name=profile.served_model_name,
            words=engine_words(target, venv_path, interpreter(target)),
            protect_home=_protect_home(target, paths),
        )
        environment = environment_file(service_environment(target))
        secret_text = environment_file({name: s.value for name, s in secrets.items()})
    except ValueError as error:
        raise UsageError(f"{target.name}: profile {profile.name}: {error}") from error
    described = _describe(profile, venv, manifest)
    identifier = _identifier(unit, environment, described, secret_text)
    return Release(
        identifier,
        (
            ReleaseFile("unit", unit.replace(_PLACEHOLDER, identifier)),
            ReleaseFile("environment", environment),
            ReleaseFile("profile.json", described),
            ReleaseFile("secrets", Secret(secret_text), mode=0o600),
        ),
    )


def _identifier(unit: str, environment: str, described: str, secret_text: str) -> str:
    """Secrets enter by a slow hash: a release's id is public and must not help to guess them."""
    salt = (unit + environment).encode()
    hidden = b""
    if secret_text:
        hidden = hashlib.scrypt(secret_text.encode(), salt=salt, n=2**12, r=8, p=1)
    return _digest(unit.encode(), environment.encode(), described.encode(), hidden)
