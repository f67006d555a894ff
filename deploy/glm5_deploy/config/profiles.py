"""Profile files: found, read, and judged as far as can be before their templates are rendered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from glm5_deploy.config.checks import profile_problems
from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, elsewhere, shown_file
from glm5_deploy.config.models import Profile
from glm5_deploy.config.node import Node
from glm5_deploy.config.resources import resource_dir
from glm5_deploy.config.templates import is_template
from glm5_deploy.config.validate import fill_empty, validate
from glm5_deploy.config.yaml import read_parts


def profile_files(places: Iterable[Path]) -> list[Path]:
    """The files in folders (not below them) and the files named directly, each once."""
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


def load_profiles(files: Iterable[Path]) -> tuple[dict[str, Node], list[ConfigProblem]]:
    """Profiles by name, and everything that is wrong with any of them."""
    profiles: dict[str, Node] = {}
    problems: list[ConfigProblem] = []
    for file in files:
        try:
            top, unread = read_parts(file)
        except ConfigErrors as error:
            problems += error.problems
            continue
        node = fill_empty(Profile, top)
        problems += [*unread, *elsewhere(_raw_problems(node), unread)]
        name = node.at("name")
        if name is None or name.text is None:
            continue
        if name.text in profiles:
            first = shown_file(profiles[name.text].file)
            problems.append(name.problem(f"a profile of this name is already in {first}"))
        profiles.setdefault(name.text, node)
    return profiles, problems


def _raw_problems(profile: Node) -> list[ConfigProblem]:
    """A value with a template in it is not judged before it is rendered."""
    _, found = validate(Profile, profile)
    judged = [problem for path, problem in found if not _has_template(profile.at(*path))]
    return [*judged, *profile_problems(profile)]


def _has_template(node: Node | None) -> bool:
    return node is not None and node.text is not None and is_template(node.text)


def shipped_profiles() -> dict[str, Node]:
    """Profiles that come with the program, by name.

    Raises:
        ConfigErrors: one of them is broken.
    """
    profiles, problems = load_profiles(_yaml_files(resource_dir("profiles")))
    if problems:
        raise ConfigErrors(problems)
    return profiles


def unknown_hint(name: str, known: Iterable[str], searched: Sequence[Path]) -> str:
    """A profile that is really near, else all that are known and where they were searched."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, 0.75)
    if near:
        return f"did you mean `{near[0]}`?"
    places = ", ".join(shown_file(Path.cwd() / place) for place in searched)
    where = f"; searched: {places}, and those that ship" if searched else ""
    return f"profiles: {', '.join(names) or 'none'}{where}"


def find_profile(name: str, profiles: Mapping[str, Node], searched: Sequence[Path] = ()) -> Node:
    """From the given ones, else from those that ship with the program.

    Args:
        searched: where the given ones were looked for.

    Raises:
        ConfigErrors: there is none of this name; the nearest is named.
    """
    if name in profiles:
        return profiles[name]
    known = {**shipped_profiles(), **profiles}
    if name not in known:
        message = f"no profile is called `{name}`"
        hint = unknown_hint(name, known, searched)
        raise ConfigErrors([ConfigProblem(None, None, None, "", message, hint)])
    return known[name]
