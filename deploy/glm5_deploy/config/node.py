"""A value of a YAML file with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from glm5_deploy.config.errors import ConfigProblem, KeyPath, shown_path

Scalar = str | int | float | bool | None
Plain = dict[str, "Plain"] | list["Plain"] | Scalar


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its place.

    Args:
        value: a scalar, a list of nodes or a mapping from text to nodes.
        file: the file that it was read from.
        path: keys from the top of that file.
        key_line, key_column: where its key is (its own place in a list), counted from 1.
        line, column: where the value begins.
        source: a scalar as it was written, without quotes.
    """

    value: dict[str, Node] | list[Node] | Scalar
    file: Path
    path: KeyPath = ()
    key_line: int = 1
    key_column: int = 1
    line: int = 1
    column: int = 1
    source: str | None = None

    @property
    def mapping(self) -> Mapping[str, Node]:
        """Its keys, or none where it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """Its items, or none where it is no list."""
        return self.value if isinstance(self.value, list) else []

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    def at(self, *path: str | int) -> Node | None:
        """The node below, or None."""
        node: Node | None = self
        for part in path:
            if node is None:
                return None
            if isinstance(part, int):
                node = node.items[part] if part < len(node.items) else None
            else:
                node = node.mapping.get(part)
        return node

    def below(self, key: str) -> Mapping[str, Node]:
        """The mapping under a key, or none where there is none."""
        node = self.mapping.get(key)
        return {} if node is None else node.mapping

    def local_path(self, text: str) -> Path:
        """A path of this machine, relative to the file that this node was written in."""
        return self.file.parent / Path(text).expanduser()

    def plain(self) -> Plain:
        """Without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def replace(self, value: dict[str, Node] | list[Node] | Scalar) -> Node:
        """Another value at the same place."""
        return Node(
            value,
            self.file,
            self.path,
            self.key_line,
            self.key_column,
            self.line,
            self.column,
            self.source,
        )

    def scalars(self) -> Iterator[Node]:
        """Every scalar below, in order."""
        if isinstance(self.value, dict):
            for node in self.value.values():
                yield from node.scalars()
        elif isinstance(self.value, list):
            for node in self.value:
                yield from node.scalars()
        else:
            yield self

    def problem(
        self, message: str, hint: str | None = None, *, at_key: bool = False
    ) -> ConfigProblem:
        """A problem with this value, or with its key."""
        line, column = (self.key_line, self.key_column) if at_key else (self.line, self.column)
        return ConfigProblem(self.file, line, column, shown_path(self.path), message, hint)
