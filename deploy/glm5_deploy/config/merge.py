"""Merging the levels of an inventory: defaults, then groups (parents first), then the host.

Mappings merge, scalars and lists replace. Every value keeps the place that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, KeyPath
from glm5_deploy.config.node import Node

MEMBERS = ("hosts", "groups")
"""Keys of a group that are no settings."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a merged value was written; ``level`` is such as ``group gpus``."""

    file: Path
    line: int
    level: str


def merge(base: Node, top: Node) -> Node:
    """`top` over `base`: mappings merge, anything else (null too) replaces."""
    if not isinstance(base.value, dict) or not isinstance(top.value, dict):
        return top
    merged = dict(base.value)
    for key, node in top.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return base.replace(merged)


def origin(node: Node) -> Origin:
    """The level is told by the path: defaults, groups.NAME, hosts.NAME, or a profile file."""
    kind, *rest = node.path or ("",)
    name = rest[0] if rest else ""
    level = {"defaults": "defaults", "groups": f"group {name}", "hosts": f"host {name}"}.get(
        str(kind), "profile"
    )
    return Origin(node.file, node.key_line, level)


def origins(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Origin]]:
    """The origin of each scalar, list and empty mapping, by its key path in the merged value."""
    if isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from origins(child, (*path, key))
    else:
        yield path, origin(node)


# --- groups --------------------------------------------------------------------------------------


def members(group: Node, kind: str) -> list[Node]:
    """The group's ``hosts`` or ``groups`` that are text."""
    listed = group.at(kind)
    return [] if listed is None else [node for node in listed.items if node.text is not None]


def group_order(groups: Mapping[str, Node]) -> list[str]:
    """Every group after all of its parents, otherwise in order of declaration.

    Raises:
        ConfigErrors: a cycle, with the groups that form it.
    """
    parents = _parents(groups)
    done: dict[str, None] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in trail:
            cycle = (*trail[trail.index(name) :], name)
            raise ConfigErrors([_cycle(groups, cycle[::-1])])
        for parent in parents[name]:
            visit(parent, (*trail, name))
        done[name] = None

    for name in groups:
        visit(name, ())
    return list(done)


def _parents(groups: Mapping[str, Node]) -> dict[str, list[str]]:
    parents: dict[str, list[str]] = {name: [] for name in groups}
    for name, group in groups.items():
        for child in members(group, "groups"):
            if child.text in parents:
                parents[child.text].append(name)
    return parents


def _cycle(groups: Mapping[str, Node], cycle: Sequence[str]) -> ConfigProblem:
    listed = groups[cycle[0]].at("groups") or groups[cycle[0]]
    return listed.problem(f"groups hold each other in a circle: {' → '.join(cycle)}")


def groups_of(host: str, groups: Mapping[str, Node], order: Sequence[str]) -> tuple[str, ...]:
    """The groups that hold a host, also through other groups, in merge order."""
    parents = _parents(groups)
    found: set[str] = set()

    def add(name: str) -> None:
        if name not in found:
            found.add(name)
            for parent in parents[name]:
                add(parent)

    for name, group in groups.items():
        if any(node.text == host for node in members(group, "hosts")):
            add(name)
    return tuple(name for name in order if name in found)


def settings_of(document: Node, host: str, groups: Sequence[str]) -> Node:
    """A host's merged settings; `groups` as `groups_of` gives them."""
    declared = document.below("groups")
    levels = [
        document.at("defaults"),
        *(_without_members(declared[name]) for name in groups),
        document.at("hosts", host),
    ]
    return reduce(merge, (level for level in levels if level is not None), document.replace({}))


def _without_members(group: Node) -> Node:
    return group.replace({k: v for k, v in group.mapping.items() if k not in MEMBERS})
