"""From nodes to models, with pydantic's errors said in plain words at their place in the file."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from glm5_deploy.config.errors import ConfigProblem, KeyPath
from glm5_deploy.config.models import Model
from glm5_deploy.config.node import Node
from glm5_deploy.config.numbers import natural

M = TypeVar("M", bound=Model)

_SECRET_KEYS = {"password", "identity_passphrase", "api-key", "api_key"}
SECRET_HINT = (
    "write ${env:NAME}, ${file:path} or ${exec:command}; a secret itself does not belong in a file"
)


def validate(model: type[M], node: Node) -> tuple[M | None, list[tuple[KeyPath, ConfigProblem]]]:
    """The model, or None with every problem beside the key path (in the merged value) it is about.

    Types are strict: ``"8000"`` is text, not a number. JSON is the way there because pydantic's
    strict mode then still takes text for a path.
    """
    try:
        return model.model_validate_json(json.dumps(node.plain()), strict=True), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    grouped: dict[KeyPath, list[Mapping[str, Any]]] = {}
    for detail in details:
        grouped.setdefault(_path_in(node, detail["loc"]), []).append(detail)
    return None, [(path, _translate(model, node, path, found)) for path, found in grouped.items()]


def _path_in(node: Node, location: Iterable[str | int]) -> KeyPath:
    """pydantic's location without the names of union members; for a missing key, its parent's."""
    path: list[str | int] = []
    current: Node | None = node
    for part in location:
        current = current.at(part) if current is not None else None
        if current is None:
            break
        path.append(part)
    return tuple(path)


def _translate(
    model: type[BaseModel], top: Node, path: KeyPath, details: list[Mapping[str, Any]]
) -> ConfigProblem:
    node = top.at(*path)
    assert node is not None  # _path_in stops at the last node that exists
    detail = details[0]
    kind = detail["type"]
    if kind == "missing":
        names = ", ".join(f"`{d['loc'][-1]}`" for d in details if d["type"] == "missing")
        return node.problem(f"missing: {names}", at_key=True)
    if kind == "extra_forbidden":
        return node.problem(_unknown_key(model, path), at_key=True)
    if detail["loc"][-1] == "[key]":
        return node.problem(_pattern(detail, f"`{path[-1]}`"), at_key=True)
    if is_secret(path):
        return node.problem("not a reference to a secret", SECRET_HINT)
    if len(details) > 1:
        found = "a list with something else in it" if node.items else describe(node)
        return node.problem(f"expected {_union(details)}, found {found}")
    return _simple(node, detail)


def is_secret(path: KeyPath) -> bool:
    """Whether a value at this path must never be shown."""
    return "secrets" in path[:-1] or (bool(path) and path[-1] in _SECRET_KEYS)


def describe(node: Node) -> str:
    """A value as a user would name it, shortened."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        short = value if len(value) <= 40 else f"{value[:39]}…"
        return f"the text {json.dumps(short, ensure_ascii=False)}"
    return f"the number {node.source or value}"


# --- wording -------------------------------------------------------------------------------------

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "path_type": "a path",
    "finite_number": "a finite number",
}

_PATTERNS = {
    "^[A-Za-z0-9][A-Za-z0-9._-]*$": (
        "a name holds letters, digits, `.`, `_` and `-`, and begins with a letter or digit"
    ),
    "^[A-Za-z_][A-Za-z0-9_]*$": (
        "a variable's name holds letters, digits and `_`, and does not begin with a digit"
    ),
    r"^3\.[0-9]+$": 'a Python version is such as "3.12"',
    "^[a-z_][a-z0-9_-]{0,31}$": (
        "a user's name holds small letters, digits, `_` and `-`, 32 at most"
    ),
}


def _simple(node: Node, detail: Mapping[str, Any]) -> ConfigProblem:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _EXPECTED:
        return node.problem(
            f"expected {_EXPECTED[kind]}, found {describe(node)}", _type_hint(node, kind)
        )
    if kind == "string_pattern_mismatch":
        return node.problem(_pattern(detail, describe(node)))
    if kind == "literal_error":
        return _literal(node, str(context["expected"]))
    if kind == "value_error":
        return node.problem(str(context.get("error", detail["msg"])))
    return node.problem(_limit(kind, context, node) or str(detail["msg"]))


def _type_hint(node: Node, kind: str) -> str | None:
    if kind == "string_type" and node.source and not isinstance(node.value, str):
        return f'write it in quotes: "{node.source}"'
    if kind == "bool_type" and str(node.value).lower() in ("yes", "no", "on", "off"):
        return "write true or false"
    if kind in ("int_type", "float_type") and _is_number(node.text):
        return f"write it without quotes: {node.text}"
    if kind == "list_type" and isinstance(node.value, str):
        return f"write [{node.value}], or one `- ` line for each"
    return None


def _is_number(text: str | None) -> bool:
    return text is not None and natural(text.replace(".", "", 1)) is not None


def _limit(kind: str, context: Mapping[str, Any], node: Node) -> str | None:
    found = describe(node)
    words = {
        "greater_than_equal": ("ge", "at least"),
        "greater_than": ("gt", "more than"),
        "less_than_equal": ("le", "at most"),
        "less_than": ("lt", "less than"),
    }
    if kind in words:
        key, text = words[kind]
        return f"must be {text} {context[key]:g}, found {found}"
    if kind == "string_too_long":
        return f"must have {context['max_length']} characters at most"
    if kind == "too_short":
        return f"must have {context['min_length']} or more items"
    return None


def _literal(node: Node, expected: str) -> ConfigProblem:
    allowed = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
    near = difflib.get_close_matches(str(node.value), allowed, 1)
    hint = f"did you mean `{near[0]}`?" if near else None
    return node.problem(f"expected one of {', '.join(allowed)}; found {describe(node)}", hint)


def _pattern(detail: Mapping[str, Any], found: str) -> str:
    if detail["type"] == "string_too_long":
        return f"{found}: must have {detail['ctx']['max_length']} characters at most"
    pattern = str(detail.get("ctx", {}).get("pattern", ""))
    rule = _PATTERNS.get(pattern, f"must match {pattern}" if pattern else str(detail["msg"]))
    text = f"{found} will not do: {rule}"
    if any(sign in str(detail["input"]) for sign in "*?["):
        text += "; patterns select hosts on the command line (--host), not here"
    return text


def _union(details: list[Mapping[str, Any]]) -> str:
    depth = min(len(d["loc"]) for d in details)
    words = [_EXPECTED.get(d["type"], "") for d in details if len(d["loc"]) == depth]
    words = ["text" if w == "" else w for w in dict.fromkeys(words)]
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    if any("list[" in str(part) for d in details for part in d["loc"]) and "a list" not in words:
        words.append("a list of these")
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


# --- unknown keys --------------------------------------------------------------------------------


def _unknown_key(model: type[BaseModel], path: KeyPath) -> str:
    holder = _model_at(model, path[:-1])
    key = str(path[-1])
    if holder is None:
        return "unknown key"
    names = list(holder.model_fields)
    near = _suggestion(holder, key, names)
    mean = f"; did you mean `{near}`?" if near else ";"
    return f"unknown key{mean} allowed: {', '.join(names)}"


def _suggestion(holder: type[BaseModel], key: str, names: list[str]) -> str | None:
    """The key of that name one level down, else the nearest here or, if it is very near, below."""
    below: dict[str, str] = {}
    for name in names:
        inner = _as_model(holder.model_fields[name].annotation)
        if inner is not None:
            below.update({field: f"{name}.{field}" for field in inner.model_fields})
    if key in below:
        return below[key]
    scored = [(_likeness(key, name), name) for name in names]
    scored += [(_likeness(key, field) - 0.15, path) for field, path in below.items()]
    score, best = max(scored, default=(0.0, ""))
    return best if score >= 0.6 else None


def _likeness(key: str, name: str) -> float:
    """Up to 1; two letters that changed places count as nearly the same."""
    if sorted(key) == sorted(name):
        return 0.95
    return difflib.SequenceMatcher(None, key, name).ratio()


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that the value at this path is read into."""
    annotation: object = model
    for part in path:
        annotation = _step(annotation, part)
    return _as_model(annotation)


def _step(annotation: object, part: str | int) -> object:
    holder = _as_model(annotation)
    if holder is not None:
        field = holder.model_fields.get(str(part))
        return None if field is None else field.annotation
    arguments = typing.get_args(_bare(annotation))
    return arguments[-1] if arguments else None


def _bare(annotation: object) -> object:
    """Without ``Annotated`` and without ``| None``."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _bare(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kept = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        return _bare(kept[0]) if len(kept) == 1 else annotation
    return annotation


def _as_model(annotation: object) -> type[BaseModel] | None:
    bare = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


# --- empty sections ------------------------------------------------------------------------------


def fill_empty(annotation: object, node: Node) -> Node:
    """Sections that hold nothing (all lines below ``groups:`` commented out) as empty ones."""
    bare = _bare(annotation)
    model, kind = _as_model(bare), typing.get_origin(bare)
    if node.value is None:
        if model is not None or kind is dict:
            return node.replace({})
        return node.replace([]) if kind is list else node
    if not isinstance(node.value, dict):
        return node
    filled = {}
    for key, child in node.value.items():
        inner = _step(bare, key) if model is not None or kind is dict else None
        filled[key] = child if inner is None or _is_optional(inner) else fill_empty(inner, child)
    return node.replace(filled)


def _is_optional(annotation: object) -> bool:
    return type(None) in typing.get_args(annotation)
