"""A host's configuration as it was merged, for people and programs; secrets stay references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from glm5_deploy.config import emit
from glm5_deploy.config.complete import placed_settings
from glm5_deploy.config.errors import ConfigErrors, KeyPath, shown_file
from glm5_deploy.config.load import LoadedInventory, profile_name, resolve_places
from glm5_deploy.config.merge import Origin, origins
from glm5_deploy.config.node import Node, Plain

_LEFT_OUT = {"override", "profile"}
"""Settings whose effect stands in the profile itself."""


@dataclass(frozen=True)
class Shown:
    """Everything that holds for a host, defaults of the program included.

    Args:
        origins: where each value was written; what is missing there is a default.
    """

    config: Mapping[str, Plain]
    origins: Mapping[KeyPath, Origin]


def collect(loaded: LoadedInventory, names: Sequence[str]) -> dict[str, Shown]:
    """By host; one without a profile shows its settings.

    Raises:
        ConfigErrors: what is wrong with any of these hosts.
    """
    served = [name for name in names if profile_name(loaded.settings(name))]
    resolved = {found.target.name: found for found in resolve_places(loaded, served)}
    shown = {}
    for name in names:
        if name not in resolved:
            shown[name] = _without_profile(loaded, name)
            continue
        found = resolved[name]
        config = found.target.profile.model_dump(mode="json")
        settings = found.target.settings.model_dump(mode="json", exclude=_LEFT_OUT)
        places = {("profile", *path): where for path, where in origins(found.profile)}
        shown[name] = Shown(
            {"groups": [*found.target.groups], **settings, "profile": config},
            _settings_origins(found.settings) | places,
        )
    return shown


def _without_profile(loaded: LoadedInventory, name: str) -> Shown:
    placed, settings, problems = placed_settings(loaded.settings(name))
    if settings is None:
        raise ConfigErrors(problems)
    config = settings.model_dump(mode="json", exclude=_LEFT_OUT)
    return Shown(
        {"groups": [*loaded.groups[name]], **config, "profile": None}, _settings_origins(placed)
    )


def _settings_origins(settings: Node) -> dict[KeyPath, Origin]:
    return {path: at for path, at in origins(settings) if path and path[0] not in _LEFT_OUT}


# --- for programs --------------------------------------------------------------------------------


def as_json(hosts: Mapping[str, Shown], *, with_origin: bool) -> dict[str, object]:
    """By host ``{"config", "origins": {"a.b": {"file", "line", "level"}}}``."""
    return {
        name: {"config": shown.config}
        | ({"origins": _plain_origins(shown.origins)} if with_origin else {})
        for name, shown in hosts.items()
    }


def _plain_origins(found: Mapping[KeyPath, Origin]) -> dict[str, object]:
    return {
        ".".join(str(part) for part in path): {
            "file": str(at.file),
            "line": at.line,
            "level": at.level,
        }
        for path, at in found.items()
    }


# --- for people ----------------------------------------------------------------------------------


def as_yaml(hosts: Mapping[str, Shown], *, with_origin: bool) -> str:
    """One document with a mapping for each host; with origins as comments."""
    lines: list[str] = []
    for name, shown in hosts.items():
        lines.append(f"{emit.text(name)}:")
        lines += _lines(shown.config, (), shown.origins if with_origin else None)
    return "\n".join(lines) + "\n" if lines else "{}\n"


def _lines(
    value: Mapping[str, Plain], path: KeyPath, known: Mapping[KeyPath, Origin] | None
) -> Iterator[str]:
    indent = "  " * (len(path) + 1)
    for key, child in value.items():
        here = (*path, key)
        if isinstance(child, dict) and child:
            yield f"{indent}{emit.text(key)}:"
            yield from _lines(child, here, known)
        else:
            yield f"{indent}{emit.text(key)}: {emit.flow(child)}{_comment(here, known)}"


def _comment(path: KeyPath, known: Mapping[KeyPath, Origin] | None) -> str:
    if known is None or path == ("groups",):
        return ""
    # A template may have made a mapping of one value: its parts come from where that was written.
    found = next((known[path[:n]] for n in range(len(path), 0, -1) if path[:n] in known), None)
    if found is None:
        return "  # default"
    return f"  # {found.level}, {shown_file(found.file)}:{found.line}"
