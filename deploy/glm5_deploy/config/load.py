"""An inventory with its profiles, and what they come to for each host."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.config.address import parse_address
from glm5_deploy.config.checks import (
    file_problems,
    inventory_problems,
    nearest,
    profile_problems,
    profile_warnings,
)
from glm5_deploy.config.errors import ConfigErrors, ConfigProblem
from glm5_deploy.config.merge import group_order, groups_of, merge, settings_of
from glm5_deploy.config.models import HostSettings, Inventory, Profile, Target
from glm5_deploy.config.resources import find_lock, resource_dir
from glm5_deploy.config.templates import is_template, render
from glm5_deploy.config.validate import fill_empty, validate
from glm5_deploy.config.yaml import Node, read
from glm5_deploy.errors import UsageError

INVENTORY_VARIABLE = "GLM5_INVENTORY"


@dataclass(frozen=True)
class LoadedInventory:
    """A valid inventory; templates are not rendered yet.

    Args:
        document: the file with its places.
        profiles: by name, from the inventory's own files.
        group_order: every group after its parents.
    """

    path: Path
    document: Node
    inventory: Inventory
    profiles: Mapping[str, Node]
    group_order: tuple[str, ...]

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(self.inventory.hosts)

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(self.inventory.groups)


@dataclass(frozen=True)
class Resolved:
    """A target with the places of everything in it (`merge.origins`) and what is doubtful about it."""

    target: Target
    settings: Node
    profile: Node
    warnings: tuple[ConfigProblem, ...]


def find_inventory(explicit: Path | None) -> Path | None:
    """``-i``, else ``$GLM5_INVENTORY``, else the usual places; None where there is none.

    Raises:
        UsageError: the file that was named does not exist.
    """
    named = explicit or (Path(text) if (text := os.environ.get(INVENTORY_VARIABLE)) else None)
    if named is not None:
        path = named.expanduser()
        if not path.is_file():
            source = "" if explicit else f" (from ${INVENTORY_VARIABLE})"
            raise UsageError(f"no inventory at {path}{source}", "`glm5-deploy init` writes one")
        return path
    usual = (
        Path("inventory.yml"),
        Path("inventory/inventory.yml"),
        Path.home() / ".config/glm5-deploy/inventory.yml",
    )
    return next((path for path in usual if path.is_file()), None)


# --- loading -------------------------------------------------------------------------------------


def load_inventory(path: Path) -> LoadedInventory:
    """Read an inventory and all profile files that it names.

    Raises:
        ConfigErrors: everything that is wrong in any of them.
    """
    file = path.absolute()
    document = fill_empty(Inventory, read(file))
    inventory, found = validate(Inventory, document)
    profiles, profile_errors = _load_profiles(_profile_files(document))
    problems = [
        *(problem for _, problem in found),
        *inventory_problems(document),
        *profile_errors,
        *_missing_places(document),
        *_unknown_profiles(document, profiles),
    ]
    if problems or inventory is None:
        raise ConfigErrors(problems)
    order = tuple(group_order(inventory_groups(document)))
    return LoadedInventory(path, document, inventory, profiles, order)


def inventory_groups(document: Node) -> Mapping[str, Node]:
    """The group nodes by name."""
    groups = document.at("groups")
    return {} if groups is None else groups.mapping


def _profile_places(document: Node) -> list[tuple[Node, Path]]:
    listed = document.at("profiles")
    nodes = [] if listed is None else listed.items
    return [(node, _from(node, node.text)) for node in nodes if node.text]


def _from(node: Node, text: str) -> Path:
    """A path relative to the file that names it."""
    return node.file.parent / Path(text).expanduser()


def _profile_files(document: Node) -> list[Path]:
    places = [path for _, path in _profile_places(document)]
    if document.at("profiles") is None:
        places = [document.file.parent / "profiles"]
    files = [file for place in places for file in _yaml_files(place)]
    return list(dict.fromkeys(file.resolve() for file in files))


def _yaml_files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(
            f
            for f in place.iterdir()
            if f.suffix in (".yml", ".yaml") and not f.name.startswith(".")
        )
    return [place] if place.is_file() else []


def _missing_places(document: Node) -> list[ConfigProblem]:
    return [
        node.problem(f"no such folder or file: {path}")
        for node, path in _profile_places(document)
        if not path.exists()
    ]


def _load_profiles(files: Iterable[Path]) -> tuple[dict[str, Node], list[ConfigProblem]]:
    profiles: dict[str, Node] = {}
    problems: list[ConfigProblem] = []
    for file in files:
        try:
            node = fill_empty(Profile, read(file))
        except ConfigErrors as error:
            problems += error.problems
            continue
        problems += _raw_problems(node)
        name = node.at("name")
        if name is None or name.text is None:
            continue
        if name.text in profiles:
            first = profiles[name.text].file
            problems.append(
                name.problem(f"a second profile `{name.text}`: the first is in {first}")
            )
        profiles.setdefault(name.text, node)
    return profiles, problems


def _raw_problems(profile: Node) -> list[ConfigProblem]:
    """What is wrong with a profile before it is rendered: a value with a template in it is not judged yet."""
    _, found = validate(Profile, profile)
    judged = []
    for path, problem in found:
        node = profile.at(*path)
        if node is None or node.text is None or not is_template(node.text):
            judged.append(problem)
    return [*judged, *profile_problems(profile)]


def _unknown_profiles(document: Node, profiles: Mapping[str, Node]) -> list[ConfigProblem]:
    problems = []
    for level in _levels(document):
        node = level.at("profile")
        if node is None or node.text is None or node.text in profiles:
            continue
        shipped = shipped_profiles()
        if node.text not in shipped:
            hint = nearest(node.text, {**profiles, **shipped}, "known profiles")
            problems.append(node.problem(f"no profile is called `{node.text}`", hint))
    return problems


def _levels(document: Node) -> list[Node]:
    defaults, hosts = document.at("defaults"), document.at("hosts")
    levels = [] if defaults is None else [defaults]
    levels += inventory_groups(document).values()
    return levels + ([] if hosts is None else list(hosts.mapping.values()))


def shipped_profiles() -> dict[str, Node]:
    """Profiles that come with the program, by name.

    Raises:
        ConfigErrors: one of them is broken.
    """
    profiles, problems = _load_profiles(_yaml_files(resource_dir("profiles")))
    if problems:
        raise ConfigErrors(problems)
    return profiles


# --- selecting -----------------------------------------------------------------------------------


def select(
    loaded: LoadedInventory, hosts: Sequence[str] = (), groups: Sequence[str] = ()
) -> list[str]:
    """Names of the hosts that match a pattern or are in a group, in the inventory's order; all without either.

    Raises:
        ConfigErrors: a name or pattern that matches nothing, with the nearest name.
    """
    if not hosts and not groups:
        return list(loaded.host_names)
    problems = [
        *(_unknown(f"host {_matches_nothing(p)}", p, loaded.host_names, "hosts")
          for p in hosts if not fnmatch.filter(loaded.host_names, p)),
        *(_unknown(f"group {_matches_nothing(p)}", p, loaded.group_names, "groups")
          for p in groups if not fnmatch.filter(loaded.group_names, p)),
    ]  # fmt: skip
    if problems:
        raise ConfigErrors(problems)
    return [name for name in loaded.host_names if _selected(loaded, name, hosts, groups)]


def _selected(
    loaded: LoadedInventory, name: str, hosts: Sequence[str], groups: Sequence[str]
) -> bool:
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in hosts):
        return True
    inside = groups_of(name, inventory_groups(loaded.document), loaded.group_order)
    return any(fnmatch.filter(inside, pattern) for pattern in groups)


def _matches_nothing(pattern: str) -> str:
    looks_glob = any(sign in pattern for sign in "*?[")
    return f"matches `{pattern}`" if looks_glob else f"is called `{pattern}`"


def _unknown(what: str, name: str, known: Iterable[str], kind: str) -> ConfigProblem:
    return ConfigProblem(None, None, None, "", f"no {what}", nearest(name, known, f"known {kind}"))


# --- resolving -----------------------------------------------------------------------------------


def resolve(
    loaded: LoadedInventory,
    *,
    hosts: Sequence[str] = (),
    groups: Sequence[str] = (),
    profile: str | None = None,
) -> list[Target]:
    """The selected hosts with everything merged and rendered, in the inventory's order.

    Args:
        hosts, groups: names or globs; a host that matches any of them is selected. None of either: all hosts.
        profile: served instead of what the inventory says.

    Raises:
        ConfigErrors: what is wrong with any of these hosts, or with the selection.
    """
    names = select(loaded, hosts, groups)
    return [resolved.target for resolved in resolve_places(loaded, names, profile)]


def resolve_places(
    loaded: LoadedInventory, names: Sequence[str], profile: str | None = None
) -> list[Resolved]:
    """Like `resolve`, for exact names, with the places and warnings kept."""
    done: list[Resolved] = []
    problems: list[ConfigProblem] = []
    for name in names:
        try:
            done.append(_resolve_host(loaded, name, profile))
        except ConfigErrors as error:
            problems += error.problems
    problems += _same_unit(done)
    if problems:
        raise ConfigErrors(problems)
    return done


def check_inventory(loaded: LoadedInventory) -> list[ConfigProblem]:
    """Resolve every host that has a profile.

    Returns:
        Warnings.

    Raises:
        ConfigErrors: what only rendering shows.
    """
    names = [name for name in loaded.host_names if _profile_name(_settings(loaded, name)[0])]
    found = (warning for resolved in resolve_places(loaded, names) for warning in resolved.warnings)
    return list(ConfigErrors(found).problems)


def _settings(loaded: LoadedInventory, name: str) -> tuple[Node, tuple[str, ...]]:
    groups = groups_of(name, inventory_groups(loaded.document), loaded.group_order)
    return settings_of(loaded.document, name, groups), groups


def _profile_name(settings: Node) -> str | None:
    node = settings.at("profile")
    return None if node is None else node.text


def _resolve_host(loaded: LoadedInventory, name: str, profile: str | None) -> Resolved:
    settings, groups = _settings(loaded, name)
    wanted = profile or _profile_name(settings)
    if wanted is None:
        entry = loaded.document.at("hosts", name) or loaded.document
        raise ConfigErrors(
            [
                entry.problem(
                    "this host has no profile",
                    "give it `profile: NAME`, or leave it out with --host",
                    at_key=True,
                )
            ]
        )
    return _complete(name, groups, settings, _find_profile(wanted, loaded.profiles))


def _find_profile(name: str, profiles: Mapping[str, Node]) -> Node:
    if name in profiles:
        return profiles[name]
    shipped = shipped_profiles()
    if name in shipped:
        return shipped[name]
    raise ConfigErrors(
        [_unknown(f"profile is called `{name}`", name, {**profiles, **shipped}, "profiles")]
    )


def _complete(name: str, groups: tuple[str, ...], settings: Node, profile: Node) -> Resolved:
    override = settings.at("override")
    merged = profile if override is None else merge(profile, override)
    rendered = render(fill_empty(Profile, merged), _context(name, groups, settings))
    located = _locate(rendered, _PROFILE_PATHS)
    placed = _locate(settings, _SETTINGS_PATHS)
    read_settings, settings_found = validate(HostSettings, placed)
    read_profile, profile_found = validate(Profile, located)
    problems = [
        *(problem for _, problem in (*settings_found, *profile_found)),
        *profile_problems(located),
        *file_problems(placed, located),
    ]
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


def _context(name: str, groups: tuple[str, ...], settings: Node) -> dict[str, object]:
    variables, address = settings.at("vars"), settings.at("connection", "address")
    return {
        "vars": {} if variables is None else variables.plain(),
        "host": {
            "name": name,
            "address": (address.text if address is not None else None) or name,
            "groups": list(groups),
        },
    }


def _same_unit(found: Sequence[Resolved]) -> list[ConfigProblem]:
    """Two entries for one machine (with different roots) must not write the same unit."""
    seen: dict[tuple[object, ...], str] = {}
    problems = []
    for resolved in found:
        target, connection = resolved.target, resolved.target.settings.connection
        address = (connection.address or target.name).lower()
        key = (
            address,
            connection.port or 22,
            connection.proxy_jump,
            target.profile.unit_name,
        )
        first = seen.setdefault(key, target.name)
        if first != target.name:
            problems.append(
                ConfigProblem(
                    resolved.settings.file,
                    None,
                    None,
                    f"hosts.{target.name}",
                    f"the same machine as `{first}`, and both would write {target.profile.unit_name}",
                    "give one of them `override: {service: …}`",
                )
            )
    return problems


# --- paths ---------------------------------------------------------------------------------------


def _absolute(node: Node) -> str | None:
    return str(_from(node, node.text)) if node.text else None


def _lock_path(node: Node) -> str | None:
    found = find_lock(node.text, node.file.parent) if node.text else None
    return node.text if found is None else str(found)


def _reference(node: Node) -> str | None:
    """``${file:…}`` with an absolute path; other references as they are."""
    text = node.text
    if text is None or not text.startswith("${file:") or not text.endswith("}"):
        return text
    path = str(_from(node, text[len("${file:") : -1]))
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
    ("engine", "lock"): _lock_path,
    ("secrets", "*"): _reference,
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


# --- a single machine ----------------------------------------------------------------------------


def adhoc(address: str, profile: str, profile_dirs: Sequence[Path] = ()) -> Target:
    """A host that is in no inventory: ``user@address[:port]``, an IPv6 address in brackets.

    Args:
        profile: a profile's name, or the path of its file.
        profile_dirs: searched before the profiles that ship with the program.

    Raises:
        ConfigErrors: the address does not parse, or the profile is unknown or wrong.
    """
    place = parse_address(address)
    here = Path.cwd()
    if profile.endswith((".yml", ".yaml")) or "/" in profile:
        files = [here / Path(profile).expanduser()]
    else:
        files = [file for folder in profile_dirs for file in _yaml_files(folder)]
    profiles, problems = _load_profiles(files)
    if problems:
        raise ConfigErrors(problems)
    if profile.endswith((".yml", ".yaml")) or "/" in profile:
        found = next(iter(profiles.values()))
    else:
        found = _find_profile(profile, profiles)
    return _complete(place.name, (), place.settings(here / "command line"), found).target
