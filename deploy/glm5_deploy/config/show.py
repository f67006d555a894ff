"""A host's configuration as it was merged, for people and programs; secrets stay references."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from glm5_deploy.config.complete import Resolved
from glm5_deploy.config.errors import KeyPath, shown_file
from glm5_deploy.config.merge import Origin, origins
from glm5_deploy.config.node import Plain

_LEFT_OUT = {"override", "profile"}
"""Settings whose effect stands in the profile itself."""


def shown(resolved: Resolved) -> dict[str, Plain]:
    """Everything that holds for a host, defaults of the program included."""
    target = resolved.target
    settings = target.settings.model_dump(mode="json", exclude=_LEFT_OUT)
    return {
        "groups": [*target.groups],
        **settings,
        "profile": target.profile.model_dump(mode="json"),
    }


def shown_origins(resolved: Resolved) -> dict[KeyPath, Origin]:
    """Where each value was written; what is not here is a default of the program."""
    found = origins(resolved.settings)
    settings = {path: where for path, where in found if path and path[0] not in _LEFT_OUT}
    profile = {("profile", *path): where for path, where in origins(resolved.profile)}
    return settings | profile


def as_yaml(hosts: Mapping[str, Resolved], *, with_origin: bool) -> str:
    """One document with a mapping for each host; with origins as comments."""
    lines: list[str] = []
    for name, resolved in hosts.items():
        known = shown_origins(resolved) if with_origin else None
        lines.append(f"{_scalar(name)}:")
        lines += _lines(shown(resolved), (), known)
    return "\n".join(lines) + "\n" if lines else "{}\n"


def as_json(hosts: Mapping[str, Resolved], *, with_origin: bool) -> dict[str, object]:
    """The same as plain data; with origins as ``{"a.b": {"file", "line", "level"}}``."""
    return {
        name: {"config": shown(resolved)}
        | ({"origins": _plain_origins(resolved)} if with_origin else {})
        for name, resolved in hosts.items()
    }


def _plain_origins(resolved: Resolved) -> dict[str, object]:
    return {
        ".".join(str(part) for part in path): {
            "file": str(where.file),
            "line": where.line,
            "level": where.level,
        }
        for path, where in shown_origins(resolved).items()
    }


# --- YAML ----------------------------------------------------------------------------------------


def _lines(
    value: Mapping[str, Plain], path: KeyPath, known: Mapping[KeyPath, Origin] | None
) -> Iterator[str]:
    indent = "  " * (len(path) + 1)
    for key, child in value.items():
        here = (*path, key)
        if isinstance(child, dict) and child:
            yield f"{indent}{_scalar(key)}:"
            yield from _lines(child, here, known)
        else:
            yield f"{indent}{_scalar(key)}: {_flow(child)}{_comment(here, known)}"


def _comment(path: KeyPath, known: Mapping[KeyPath, Origin] | None) -> str:
    if known is None or path == ("groups",):
        return ""
    # A template may have made a mapping of one value: its parts come from where that was written.
    found = next((known[path[:n]] for n in range(len(path), 0, -1) if path[:n] in known), None)
    return "  # default" if found is None else f"  # {found.level}, {_place(found)}"


def _place(found: Origin) -> str:
    return f"{shown_file(found.file)}:{found.line}"


def _flow(value: Plain) -> str:
    """JSON for what is no plain scalar: that is YAML too, and stays on its line."""
    if isinstance(value, str):
        return _scalar(value)
    return json.dumps(value, ensure_ascii=False)


def _scalar(text: str) -> str:
    import yaml

    # PyYAML quotes by the rules of YAML 1.1, which quote more than 1.2 needs and never less.
    dumped = yaml.safe_dump(text, allow_unicode=True, width=1_000_000, default_flow_style=True)
    line = dumped.removesuffix("\n").removesuffix("\n...")
    return line if "\n" not in line else json.dumps(text, ensure_ascii=False)
