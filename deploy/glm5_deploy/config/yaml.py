"""YAML with the place of every key and value, read by the rules of YAML 1.2.

Only ``true`` and ``false`` are booleans, so a host may be called ``no``; ``0644`` and ``22:30``
stay text. Keys are always text. Aliases may be used (within a limit); merge keys may not, since
`defaults`, `groups` and `override` do that with a visible origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode
from yaml.resolver import BaseResolver

from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, KeyPath
from glm5_deploy.config.node import Node, Scalar

NODE_LIMIT = 50_000
"""More values than any inventory has, reached only through nested aliases."""

DEPTH_LIMIT = 50


def read(file: Path) -> Node:
    """Read a file whose top is a mapping.

    Raises:
        ConfigErrors: it cannot be read, is not UTF-8 or not YAML, or repeats keys; all such places.
    """
    return whole(*read_parts(file))


def parse(content: bytes, file: Path) -> Node:
    """Like `read`, from bytes; ``file`` is only named in errors."""
    return whole(*parse_parts(content, file))


def whole(node: Node, problems: Sequence[ConfigProblem]) -> Node:
    """The node where there are no problems.

    Raises:
        ConfigErrors: there are.
    """
    if problems:
        raise ConfigErrors(problems)
    return node


def read_parts(file: Path) -> tuple[Node, list[ConfigProblem]]:
    """What could be read of a file, with the mistakes that left a value or a key out.

    Raises:
        ConfigErrors: nothing could be read.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigErrors(
            [ConfigProblem(file, None, None, "", f"cannot be read: {reason}")]
        ) from error
    return parse_parts(content, file)


def parse_parts(content: bytes, file: Path) -> tuple[Node, list[ConfigProblem]]:
    """Like `read_parts`, from bytes."""
    top = _compose(_decode(content, file), file)
    if top is None:
        raise ConfigErrors(
            [ConfigProblem(file, None, None, "", "the file is empty", "a mapping is expected")]
        )
    builder = _Builder(file)
    node = builder.build(top, (), top)
    if not isinstance(node.value, dict):
        message = "expected a mapping (`key: value` lines) at the top of the file"
        raise ConfigErrors(builder.problems or [node.problem(message)])
    return node, builder.problems


def _decode(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = len(before.rsplit(b"\n", 1)[-1]) + 1
        problem = ConfigProblem(
            file, before.count(b"\n") + 1, column, "", "not UTF-8 text", "save the file as UTF-8"
        )
        raise ConfigErrors([problem]) from error


# --- syntax --------------------------------------------------------------------------------------

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Parser):  # type: ignore[misc]  # the C parser where PyYAML was built with it
    """PyYAML's composer with the core schema of YAML 1.2 in place of that of 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own name


def _resolves(tag: str, pattern: str, first: str) -> None:
    BaseResolver.add_implicit_resolver.__func__(  # type: ignore[attr-defined]
        _Loader, f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})\Z"), list(first)
    )


# A leading zero is left as text: 0644 is octal to some readers and decimal to others.
_resolves("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolves("int", "[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789")
_resolves(
    "float",
    r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
)
_resolves("null", "~|null|Null|NULL|", "~nN")
_Loader.yaml_implicit_resolvers.setdefault("", []).append(
    ("tag:yaml.org,2002:null", re.compile(r"^\Z"))
)


def _compose(text: str, file: Path) -> yaml.Node | None:
    # The C composer recurses without a limit, so that the depth is looked at first.
    try:
        _refuse_deep(text, file)
        loader = _Loader(text)
        try:
            top: yaml.Node | None = loader.get_single_node()
            return top
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigErrors([_syntax_problem(error, text, file)]) from error


def _refuse_deep(text: str, file: Path) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            line, column = _place(event.start_mark)
            message = f"nested more than {DEPTH_LIMIT} levels deep"
            raise ConfigErrors([ConfigProblem(file, line, column, "", message)])


def _place(mark: Any) -> tuple[int, int]:  # noqa: ANN401  # each parser has its own type
    return mark.line + 1, mark.column + 1


_SYNTAX_HINTS = (
    ("'\\t'", "YAML allows no tabs in indentation: use spaces"),
    ("expected a single document", "one file holds one document: remove the second `---`"),
    ("expected ',' or", "a bracket is not closed before here, or a value within needs quotes"),
    ("expected node content", "a value is missing here, or a bracket is not closed"),
    ("mapping values are not allowed", "a value that holds `: ` must be in quotes"),
    ("undefined alias", "an alias (*name) needs its anchor (&name) before it"),
    ("could not find expected ':'", "a key must be followed by a colon and a space"),
    (
        "did not find expected key",
        "indent the keys of one mapping alike; put values with quotes or `{{` in quotes",
    ),
    (
        "found character that cannot start any token",
        "a value that begins with @ or ` must be in quotes; indent with spaces, not tabs",
    ),
)


def _syntax_problem(error: yaml.YAMLError, text: str, file: Path) -> ConfigProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or "syntax error"
    line, column = (None, None) if mark is None else _place(mark)
    if mark is None and isinstance(position := getattr(error, "position", None), int):
        before = text.encode(errors="replace")[:position].decode(errors="replace")
        line, column = before.count("\n") + 1, len(before.rsplit("\n", 1)[-1]) + 1
    full = f"{getattr(error, 'context', None) or ''} {said}".strip()
    hint = next((hint for sign, hint in _SYNTAX_HINTS if sign in full), None)
    if hint is None and line is not None and "\t" in _line(text, line)[: column or 1]:
        hint = _SYNTAX_HINTS[0][1]
    return ConfigProblem(
        file, line, column, "", f"not valid YAML: {said.removeprefix('but ')}", hint
    )


def _line(text: str, number: int) -> str:
    lines = text.split("\n")
    return lines[number - 1] if number <= len(lines) else ""


# --- from PyYAML's nodes to ours -----------------------------------------------------------------


class _TooLargeError(Exception):
    """The limit of values was reached."""


class _Builder:
    """Builds a file's nodes and collects what is wrong on the way."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.problems: list[ConfigProblem] = []
        self._count = 0
        self._open: set[int] = set()

    def build(self, raw: yaml.Node, path: KeyPath, at: yaml.Node) -> Node:
        try:
            return self._build(raw, path, at)
        except _TooLargeError:
            node = self._node(None, raw, path, at)
            self.problems = [
                node.problem(f"more than {NODE_LIMIT} values: aliases that repeat each other?")
            ]
            return node

    def _build(self, raw: yaml.Node, path: KeyPath, at: yaml.Node) -> Node:
        self._count += 1
        if self._count > NODE_LIMIT:
            raise _TooLargeError
        if id(raw) in self._open:
            node = self._node(None, raw, path, at)
            self.problems.append(node.problem("an alias that holds itself"))
            return node
        self._open.add(id(raw))
        try:
            return self._node(self._value(raw, path), raw, path, at)
        finally:
            self._open.discard(id(raw))

    def _value(self, raw: yaml.Node, path: KeyPath) -> dict[str, Node] | list[Node] | Scalar:
        if isinstance(raw, MappingNode) and raw.tag == "tag:yaml.org,2002:map":
            return self._mapping(raw, path)
        if isinstance(raw, SequenceNode) and raw.tag == "tag:yaml.org,2002:seq":
            return [self._build(item, (*path, index), item) for index, item in enumerate(raw.value)]
        if isinstance(raw, ScalarNode):
            return self._scalar(raw, path)
        self._refuse_tag(raw, path)
        return None

    def _mapping(self, raw: yaml.Node, path: KeyPath) -> dict[str, Node]:
        values: dict[str, Node] = {}
        for key, value in raw.value:
            name = self._key(key, path)
            if name is None:
                continue
            if name in values:
                first = values[name]
                self._problem(
                    key,
                    (*path, name),
                    f"this key is here twice: it was given on line {first.key_line}",
                )
                continue
            values[name] = self._build(value, (*path, name), key)
        return values

    def _key(self, key: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(key, ScalarNode):
            message, hint = "a key must be text", None
            if isinstance(key, MappingNode):
                hint = 'a template must be in quotes: "{{ … }}"'
            self._problem(key, path, message, hint)
            return None
        if key.value == "<<":
            self._problem(
                key,
                path,
                "merge keys (<<) are not supported",
                "share settings through `defaults`, `groups` or a profile's `override`",
            )
            return None
        return self._checked(key, str(key.value), path)

    def _scalar(self, raw: yaml.Node, path: KeyPath) -> Scalar:
        construct = _CONSTRUCT.get(raw.tag)
        if construct is None:
            self._refuse_tag(raw, path)
            return None
        try:
            value: Scalar = construct(raw.value)
        except ValueError:
            self._problem(raw, path, f"not a value of type {raw.tag.rsplit(':', 1)[-1]}")
            return None
        return self._checked(raw, value, path) if isinstance(value, str) else value

    def _checked(self, raw: yaml.Node, text: str, path: KeyPath) -> str:
        if "\0" in text:
            self._problem(raw, path, "holds a NUL character")
            return ""
        return text

    def _refuse_tag(self, raw: yaml.Node, path: KeyPath) -> None:
        self._problem(raw, path, f"the tag {raw.tag} is not supported", "remove it")

    def _problem(
        self, raw: yaml.Node, path: KeyPath, message: str, hint: str | None = None
    ) -> None:
        self.problems.append(self._node(None, raw, path, raw).problem(message, hint))

    def _node(
        self,
        value: dict[str, Node] | list[Node] | Scalar,
        raw: yaml.Node,
        path: KeyPath,
        at: yaml.Node,
    ) -> Node:
        source = raw.value if isinstance(raw, ScalarNode) else None
        return Node(
            value,
            self.file,
            path,
            *_place(at.start_mark),
            *_place(raw.start_mark),
            source,
        )


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _integer(text: str) -> int:
    bases = {"0x": 16, "0o": 8}
    return int(text, bases.get(text[:2].lower(), 10))


def _number(text: str) -> float:
    lowered = text.lower()
    return float(lowered.replace(".inf", "inf").replace(".nan", "nan"))


_CONSTRUCT: dict[str, Any] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:bool": _boolean,
    "tag:yaml.org,2002:int": _integer,
    "tag:yaml.org,2002:float": _number,
    "tag:yaml.org,2002:null": lambda _text: None,
}
