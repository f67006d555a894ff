"""An inventory with its profiles, and what they come to for each host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.config.address import parse_address
from glm5_deploy.config.checks import inventory_problems, nearest, same_unit_problems
from glm5_deploy.config.complete import Resolved, complete, placed_settings
from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, elsewhere, shown_file
from glm5_deploy.config.merge import group_order, groups_of, settings_of
from glm5_deploy.config.models import HostSettings, Inventory, Profile, Target
from glm5_deploy.config.node import Node
from glm5_deploy.config.profiles import (
    find_profile,
    load_profiles,
    profile_files,
    shipped_profiles,
    unknown_hint,
)
from glm5_deploy.config.select import select_names
from glm5_deploy.config.validate import fill_empty, validate
from glm5_deploy.config.yaml import read_parts
from glm5_deploy.errors import UsageError

INVENTORY_VARIABLE = "GLM5_INVENTORY"


@dataclass(frozen=True)
class LoadedInventory:
    """A valid inventory; templates are not rendered yet.

    Args:
        document: the file with its places.
        profiles: by name: the inventory's own, and those it names that ship with the program.
        groups: of each host, in merge order.
    """

    path: Path
    document: Node
    inventory: Inventory
    profiles: Mapping[str, Node]
    groups: Mapping[str, tuple[str, ...]]

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(self.inventory.hosts)

    @property
    def group_names(self) -> tuple[str, ...]:
        return tuple(self.inventory.groups)

    def settings(self, host: str) -> Node:
        """Merged, with the place of every value."""
        return settings_of(self.document, host, self.groups[host])


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


def known_profiles(explicit: Path | None) -> list[str]:
    """Names of profiles that a command can be told, sound or not.

    Raises:
        UsageError: see `find_inventory`; or the inventory does not parse.
    """
    path = find_inventory(explicit)
    here = [Path("profiles"), Path("inventory/profiles")]
    places = here if path is None else _profile_places(read_parts(path.absolute())[0])
    own, _ = load_profiles(profile_files(places))
    return sorted({**shipped_profiles(), **own})


# --- loading -------------------------------------------------------------------------------------


def load_inventory(path: Path) -> LoadedInventory:
    """Read an inventory and all profile files that it names.

    Raises:
        ConfigErrors: everything that is wrong in any of them.
    """
    return load_document(*read_parts(path.expanduser().absolute()), path)


def load_document(top: Node, unread: Sequence[ConfigProblem], path: Path) -> LoadedInventory:
    """Like `load_inventory`, of what `yaml.parse_parts` gives."""
    document = _without_empty(top)
    inventory, found = validate(Inventory, document)
    own, profile_problems = load_profiles(profile_files(_profile_places(document)))
    profiles = _with_shipped(document, own)
    problems = [
        *(problem for _, problem in found),
        *inventory_problems(document),
        *profile_problems,
        *_missing_places(document),
        *_unknown_profiles(document, profiles),
    ]
    problems = [*unread, *elsewhere(problems, unread)]
    if problems or inventory is None:
        raise ConfigErrors([*problems, *elsewhere(_on_hosts(document, profiles), problems)])
    declared = document.below("groups")
    order = group_order(declared)
    groups = {name: groups_of(name, declared, order) for name in inventory.hosts}
    return LoadedInventory(path, document, inventory, profiles, groups)


def _on_hosts(document: Node, profiles: Mapping[str, Node]) -> list[ConfigProblem]:
    """What resolving shows, as far as it goes, where something else is wrong already."""
    declared = document.below("groups")
    try:
        order = group_order(declared)
    except ConfigErrors:
        return []
    problems: list[ConfigProblem] = []
    for name in document.below("hosts"):
        groups = groups_of(name, declared, order)
        settings = settings_of(document, name, groups)
        profile = profiles.get(profile_name(settings) or "")
        if profile is not None:
            try:
                complete(name, groups, settings, profile)
            except ConfigErrors as error:
                problems += error.problems
    return problems


def _without_empty(document: Node) -> Node:
    """Empty sections as empty mappings, also in each `override`."""
    filled = fill_empty(Inventory, document)

    def with_override(level: Node) -> Node:
        override = level.at("override")
        if override is None:
            return level
        return level.replace({**level.mapping, "override": fill_empty(Profile, override)})

    changed = dict(filled.mapping)
    if (defaults := filled.at("defaults")) is not None:
        changed["defaults"] = with_override(defaults)
    for section in ("groups", "hosts"):
        if (node := filled.at(section)) is not None and node.mapping:
            levels = {name: with_override(level) for name, level in node.mapping.items()}
            changed[section] = node.replace(levels)
    return filled.replace(changed)


def _profile_places(document: Node) -> list[Path]:
    listed = document.at("profiles")
    if listed is None:
        return [document.file.parent / "profiles"]
    return [node.local_path(node.text) for node in listed.items if node.text]


def _missing_places(document: Node) -> list[ConfigProblem]:
    listed = document.at("profiles")
    nodes = [] if listed is None else listed.items
    places = [(node, node.local_path(node.text)) for node in nodes if node.text]
    return [
        node.problem(f"no such folder or file: {shown_file(path)}")
        for node, path in places
        if not path.exists()
    ]


def _named_profiles(document: Node) -> list[Node]:
    levels = [
        document.at("defaults"),
        *document.below("groups").values(),
        *document.below("hosts").values(),
    ]
    found = (level.at("profile") for level in levels if level is not None)
    return [node for node in found if node is not None and node.text]


def _with_shipped(document: Node, own: Mapping[str, Node]) -> dict[str, Node]:
    """With those that come with the program added where the inventory names them."""
    wanted = {node.text for node in _named_profiles(document)} - own.keys()
    shipped = shipped_profiles() if wanted else {}
    return {**{name: node for name, node in shipped.items() if name in wanted}, **own}


def _unknown_profiles(document: Node, profiles: Mapping[str, Node]) -> list[ConfigProblem]:
    unknown = [node for node in _named_profiles(document) if node.text not in profiles]
    known = {**shipped_profiles(), **profiles} if unknown else {}
    return [
        node.problem(
            f"no profile is called `{node.text}`",
            unknown_hint(node.text or "", known, _profile_places(document)),
        )
        for node in unknown
    ]


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
        hosts, groups: names or globs; a host that matches any of them is selected, and every host
            where neither is given.
        profile: served instead of what the inventory says.

    Raises:
        ConfigErrors: what is wrong with any of these hosts, or with the selection.
    """
    names = select_names(loaded.groups, loaded.group_names, hosts, groups)
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
    entries = loaded.document.below("hosts")
    problems += same_unit_problems([(r.target, entries[r.target.name]) for r in done])
    if problems:
        raise ConfigErrors(problems)
    return done


def settings_of_host(loaded: LoadedInventory, name: str) -> HostSettings:
    """A host's merged settings, whether it serves anything or not.

    Raises:
        UsageError: there is no such host.
        ConfigErrors: its settings are wrong.
    """
    if name not in loaded.host_names:
        hint = nearest(name, loaded.host_names, "hosts")
        raise UsageError(f"no host of the inventory is called `{name}`", hint)
    _, settings, problems = placed_settings(loaded.settings(name))
    if settings is None:
        raise ConfigErrors(problems)
    return settings


def check_inventory(loaded: LoadedInventory) -> list[ConfigProblem]:
    """Resolve every host that has a profile.

    Returns:
        Warnings.

    Raises:
        ConfigErrors: what only rendering shows.
    """
    names = [name for name in loaded.host_names if profile_name(loaded.settings(name))]
    found = (warning for resolved in resolve_places(loaded, names) for warning in resolved.warnings)
    return list(ConfigErrors(found).problems)


def profile_name(settings: Node) -> str | None:
    """The profile that merged settings name."""
    node = settings.at("profile")
    return None if node is None else node.text


def _resolve_host(loaded: LoadedInventory, name: str, profile: str | None) -> Resolved:
    settings = loaded.settings(name)
    wanted = profile or profile_name(settings)
    if wanted is None:
        problem = loaded.document.below("hosts")[name].problem(
            "this host has no profile",
            "give it `profile: NAME`, or choose other hosts with --host",
            at_key=True,
        )
        raise ConfigErrors([problem])
    found = find_profile(wanted, loaded.profiles, _profile_places(loaded.document))
    done = complete(name, loaded.groups[name], settings, found)
    stranger = _source_host(done, loaded.host_names)
    if stranger is not None:
        raise ConfigErrors([stranger])
    return done


def _source_host(resolved: Resolved, names: Sequence[str]) -> ConfigProblem | None:
    """Files come from another host that the inventory has."""
    node, source = resolved.profile.at("model", "source_host"), resolved.target
    wanted = source.profile.model.source_host
    if node is None or wanted is None:
        return None
    if wanted not in names:
        return node.problem(
            f"no host of the inventory is called `{wanted}`", nearest(wanted, names, "hosts")
        )
    if wanted == source.name:
        hint = f"on {wanted} itself set `override: {{model: {{source_host: null}}}}`"
        return node.problem(f"`{wanted}` cannot get its files from itself", hint)
    return None


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
    is_path = profile.endswith((".yml", ".yaml")) or "/" in profile
    file = here / Path(profile).expanduser()
    profiles, problems = load_profiles([file] if is_path else profile_files(profile_dirs))
    if problems and not (is_path and profiles):
        raise ConfigErrors(problems)
    found = (
        next(iter(profiles.values())) if is_path else find_profile(profile, profiles, profile_dirs)
    )
    try:
        done = complete(place.name, (), place.settings(here / "command line"), found)
    except ConfigErrors as error:
        raise ConfigErrors([*problems, *elsewhere(error.problems, problems)]) from error
    if problems:
        raise ConfigErrors(problems)
    return done.target
