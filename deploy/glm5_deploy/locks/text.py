"""What a lock says: its recipe in the first lines, then pins with hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.errors import UsageError

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=(sha\d+:[0-9a-fA-F]+)")
_FIELD = re.compile(r"^# *(?P<key>requires|python|platform|as of): *(?P<value>.+?) *$")


@dataclass(frozen=True)
class Recipe:
    """What a lock was resolved from; it stands in the lock's first lines.

    Args:
        requires: requirements as uv takes them.
        python: version, such as ``3.12``.
        platform: uv's name of the oldest platform that will do, such as
            ``x86_64-manylinux_2_31``.
        as_of: the day; what was published later does not count.
    """

    requires: tuple[str, ...]
    python: str
    platform: str
    as_of: str

    def lines(self) -> list[str]:
        """As comments."""
        fields = {"python": self.python, "platform": self.platform, "as of": self.as_of}
        return [
            *(f"# requires: {each}" for each in self.requires),
            *(f"# {key}: {value}" for key, value in fields.items()),
        ]


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    name: str
    version: str
    hashes: frozenset[str]


@dataclass(frozen=True)
class Difference:
    """One package that two locks do not have alike; a version is None where it is absent.

    Args:
        rehashed: the version is the same, and its files are not.
    """

    name: str
    before: str | None
    after: str | None
    rehashed: bool = False

    def __str__(self) -> str:
        if self.rehashed:
            return f"~ {self.name} {self.after}  other files"
        if self.before is None:
            return f"+ {self.name} {self.after}"
        if self.after is None:
            return f"- {self.name} {self.before}"
        return f"~ {self.name} {self.before} → {self.after}"


def read_lock(path: Path) -> str:
    """A lock's text.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        hint = "name a lock that ships, or a requirements file with hashes"
        raise UsageError(f"cannot read the lock {path}: {why}", hint) from error


def normalised(name: str) -> str:
    """As in PEP 503: ``Foo_Bar`` and ``foo.bar`` are ``foo-bar``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, Pin]:
    """Packages by their normalised names."""
    found: dict[str, Pin] = {}
    for block in logical_lines(text):
        match = _PIN.match(block)
        if match:
            name = normalised(match["name"])
            found[name] = Pin(name, match["version"], frozenset(_HASH.findall(block)))
    return found


def logical_lines(text: str) -> list[str]:
    """Lines that are no comments; a backslash continues one."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def differences(before: Mapping[str, Pin], after: Mapping[str, Pin]) -> tuple[Difference, ...]:
    """What one lock has otherwise than the other, by name."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old.version != new.version:
            versions = [each.version if each else None for each in (old, new)]
            found.append(Difference(name, versions[0], versions[1]))
        elif old.hashes != new.hashes:
            found.append(Difference(name, old.version, new.version, rehashed=True))
    return tuple(found)


def read_recipe(text: str, origin: str) -> Recipe:
    """The recipe in a lock's comments.

    Raises:
        UsageError: it has none, or not all of it.
    """
    requires: list[str] = []
    fields: dict[str, str] = {}
    for line in text.splitlines():
        match = _FIELD.match(line)
        if match is None:
            continue
        if match["key"] == "requires":
            requires.append(match["value"])
        else:
            fields[match["key"]] = match["value"]
    missing = [] if requires else ["requires"]
    missing += [key for key in ("python", "platform", "as of") if key not in fields]
    if missing:
        raise UsageError(
            f"{origin} does not say how it was made: no `# {missing[0]}: …` among its comments",
            "say it with --require, --python and --platform: they are kept in the lock",
        )
    return Recipe(tuple(requires), fields["python"], fields["platform"], fields["as of"])


def title_of(text: str) -> list[str]:
    """The comments before the recipe: what a person wrote about the lock."""
    kept = []
    for line in text.splitlines():
        if not line.startswith("#") or _FIELD.match(line) or line == FOOTER:
            break
        kept.append(line)
    return kept


FOOTER = "# Complete: installed with --no-deps. `glm5-deploy lock` makes it again."


def compose(title: Iterable[str], recipe: Recipe, resolved: str) -> str:
    """A lock's text from what uv printed; options that would name an index are left out."""
    body = [
        line for line in resolved.splitlines() if line.strip() and not line.startswith(("#", "--"))
    ]
    return "\n".join([*title, *recipe.lines(), FOOTER, *body, ""])
