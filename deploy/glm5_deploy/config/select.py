"""Hosts by name, pattern or group."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from glm5_deploy.config.checks import nearest
from glm5_deploy.config.errors import ConfigErrors, ConfigProblem


def select_names(
    groups_of_host: Mapping[str, Sequence[str]],
    known_groups: Sequence[str],
    hosts: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> list[str]:
    """Hosts that match a pattern or are in a group, in their order; all where nothing is asked for.

    Raises:
        ConfigErrors: each name or pattern that matches nothing, with the nearest name.
    """
    known_hosts = list(groups_of_host)
    if not hosts and not groups:
        return known_hosts
    problems = [*_unknown(hosts, known_hosts, "host"), *_unknown(groups, known_groups, "group")]
    if problems:
        raise ConfigErrors(problems)
    return [
        name
        for name, inside in groups_of_host.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in hosts)
        or any(fnmatch.filter(inside, pattern) for pattern in groups)
    ]


def _unknown(patterns: Sequence[str], known: Iterable[str], kind: str) -> list[ConfigProblem]:
    names = list(known)
    return [
        ConfigProblem(
            None,
            None,
            None,
            "",
            f"no {kind} {_verb(pattern)} `{pattern}`",
            nearest(pattern, names, f"{kind}s"),
        )
        for pattern in patterns
        if not fnmatch.filter(names, pattern)
    ]


def _verb(pattern: str) -> str:
    return "matches" if any(sign in pattern for sign in "*?[") else "is called"
