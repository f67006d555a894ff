"""One host's settings and profile: merged, rendered, with local paths absolute, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glm5_deploy.config.checks import (
    engine_problems,
    file_problems,
    profile_problems,
    profile_warnings,
    settings_problems,
)
from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, elsewhere
from glm5_deploy.config.locks import local_lock
from glm5_deploy.config.merge import merge
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.config.node import Node, Plain
from glm5_deploy.config.serving import serving_problems
from glm5_deploy.config.templates import render
from glm5_deploy.config.validate import fill_empty, validate


@dataclass(frozen=True)
class Resolved:
    """A target with the place of everything in it (`merge.origins`), and what is doubtful."""

    target: Target
    settings: Node
    profile: Node
    warnings: tuple[ConfigProblem, ...]


def complete(name: str, groups: tuple[str, ...], settings: Node, profile: Node) -> Resolved:
    """Put a host together.

    Args:
        settings: merged, not validated.
        profile: before the host's `override`.

    Raises:
        ConfigErrors: what is wrong with the result, at the places that it came from.
    """
    override = settings.at("override")
    merged = profile if override is None else merge(profile, override)
    rendered, unrendered = render(fill_empty(Profile, merged), _context(name, groups, settings))
    located = _locate(rendered, _PROFILE_PATHS)
    placed, read_settings, in_settings = placed_settings(settings)
    read_profile, in_profile = validate(Profile, located)
    found = [
        *in_settings,
        *settings_problems(placed),
        *(problem for _, problem in in_profile),
        *profile_problems(located),
        # A wrong key in `engine` may be the very lock that would be missed here.
        *(engine_problems(located) if read_profile is not None else ()),
        *(serving_problems(located, read_profile) if read_profile is not None else ()),
        *file_problems(placed, located),
    ]
    problems = [*unrendered, *elsewhere(found, unrendered)]
    if problems or read_settings is None or read_profile is None:
        raise ConfigErrors(problems)
    target = Target(
        name=name,
        base=settings.file.parent,
        groups=groups,
        settings=read_settings,
        profile=read_profile,
    )
    return Resolved(target, placed, located, tuple(profile_warnings(located)))


def placed_settings(
    settings: Node,
) -> tuple[Node, HostSettings | None, list[ConfigProblem]]:
    """Merged settings with absolute paths, as nodes and as a model."""
    placed = _locate(settings, _SETTINGS_PATHS)
    model, found = validate(HostSettings, placed)
    return placed, model, [problem for _, problem in found]


def _context(name: str, groups: tuple[str, ...], settings: Node) -> dict[str, dict[str, Plain]]:
    """What a template can name."""
    variables, address = settings.below("vars"), settings.at("connection", "address")
    return {
        "vars": {key: node.plain() for key, node in variables.items()},
        "host": {
            "name": name,
            "address": (address.text if address is not None else None) or name,
            "groups": [*groups],
        },
    }


# --- paths ---------------------------------------------------------------------------------------


def _absolute(node: Node) -> str | None:
    return str(node.local_path(node.text)) if node.text else None


def _lock_path(node: Node) -> str | None:
    # A name stays a name, so that a release is the same one whoever deploys it.
    found = local_lock(node.text, node.file.parent) if node.text else None
    return node.text if found is None else str(found)


def _reference(node: Node) -> str | None:
    """``${file:…}`` with an absolute path; other references as they are."""
    text = node.text
    if text is None or not text.startswith("${file:") or not text.endswith("}"):
        return text
    path = str(node.local_path(text[len("${file:") : -1]))
    return text if "}" in path else f"${{file:{path}}}"


_Rewrite = Callable[[Node], str | None]

_SETTINGS_PATHS: Mapping[tuple[str, ...], _Rewrite] = {
    ("connection", "identity_file"): _absolute,
    ("connection", "ssh_config"): _absolute,
    ("connection", "known_hosts"): _absolute,
    ("connection", "identity_passphrase"): _reference,
    ("become", "password"): _reference,
    ("python_tree",): _absolute,
    ("wheelhouse",): _absolute,
}
_PROFILE_PATHS: Mapping[tuple[str, ...], _Rewrite] = {
    ("model", "source"): _absolute,
    ("model", "manifest"): _absolute,
    ("smoke", "golden"): _absolute,
    ("engine", "lock"): _lock_path,
    ("secrets", "*"): _reference,
    ("model", "fetch_secrets", "*"): _reference,
}


def _locate(node: Node, rewrites: Mapping[tuple[str, ...], _Rewrite]) -> Node:
    """Local paths made absolute, each from the folder of the file that names it."""
    for path, rewrite in rewrites.items():
        node = _rewrite(node, path, rewrite)
    return node


def _rewrite(node: Node, path: tuple[str, ...], rewrite: _Rewrite) -> Node:
    if not path:
        return node if node.text is None else node.replace(rewrite(node))
    if not isinstance(node.value, dict):
        return node
    head, rest = path[0], path[1:]
    names = list(node.value) if head == "*" else [head] if head in node.value else []
    changed = {name: _rewrite(node.value[name], rest, rewrite) for name in names}
    return node.replace({**node.value, **changed}) if changed else node
