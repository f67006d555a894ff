"""Jinja2 templates in the strings of a profile: sandboxed, strict about names, keeping types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from glm5_deploy.config.errors import ConfigProblem
from glm5_deploy.config.node import Node

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

_SIGNS = ("{{", "{%", "{#")


def is_template(text: str) -> bool:
    """Whether Jinja2 would do anything to it."""
    return any(sign in text for sign in _SIGNS)


def render(node: Node, context: Mapping[str, Any]) -> tuple[Node, list[ConfigProblem]]:
    """A node with all its strings rendered; keys are left alone.

    A string that is exactly one ``{{ expression }}`` becomes the expression's value with its type.
    One that names something undefined or does not render stays as it is and gives a problem.
    """
    problems: list[ConfigProblem] = []
    return _render(node, context, problems), problems


def _render(node: Node, context: Mapping[str, Any], problems: list[ConfigProblem]) -> Node:
    if isinstance(node.value, dict):
        values = {key: _render(child, context, problems) for key, child in node.value.items()}
        return node.replace(values)
    if isinstance(node.value, list):
        return node.replace([_render(child, context, problems) for child in node.value])
    if not isinstance(node.value, str) or not is_template(node.value):
        return node
    try:
        return _as_node(_evaluate(node.value, context), node)
    except Exception as error:  # a template may raise whatever its expression raises
        problems.append(_problem(node, error, context))
        return node


def _evaluate(text: str, context: Mapping[str, Any]) -> object:
    from jinja2 import Undefined

    environment = _environment()
    expression = _single_expression(text)
    if expression is None:
        return environment.from_string(text).render(context)
    value = environment.compile_expression(expression, undefined_to_none=False)(**context)
    if isinstance(value, Undefined):
        str(value)  # raises UndefinedError with the name
    return value


def _single_expression(text: str) -> str | None:
    """What stands between the braces where the text is nothing but one expression."""
    from jinja2 import nodes

    body = _environment().parse(text).body
    if len(body) != 1 or not isinstance(body[0], nodes.Output):
        return None
    parts = body[0].nodes
    if len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    match = re.fullmatch(r"\s*\{\{[-+]?(.*?)[-+]?\}\}\s*", text, re.DOTALL)
    return None if match is None else match[1]


@lru_cache(maxsize=1)
def _environment() -> SandboxedEnvironment:
    # Imported here: most inventories hold no template, and jinja2 takes a tenth of a second.
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    class Environment(SandboxedEnvironment):
        """Reads `vars.items` as the variable of that name, not as the method of a mapping."""

        def getattr(self, obj: object, attribute: str) -> object:
            if isinstance(obj, dict):
                return self.getitem(obj, attribute)
            return super().getattr(obj, attribute)

        def getitem(self, obj: object, argument: Any) -> object:  # noqa: ANN401
            if isinstance(obj, dict) and argument not in obj:
                return self.undefined(obj=obj, name=argument)
            return super().getitem(obj, argument)

    return Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


def _as_node(value: object, node: Node) -> Node:
    if isinstance(value, Mapping):
        return node.replace({str(key): _as_node(item, node) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return node.replace([_as_node(item, node) for item in value])
    if value is None or isinstance(value, str | int | float | bool):
        return node.replace(value)
    raise _NoValueError(f"gives a {type(value).__name__}, which is no value of YAML")


class _NoValueError(Exception):
    """A template's result cannot stand in a profile."""


# --- errors --------------------------------------------------------------------------------------


def _problem(node: Node, error: Exception, context: Mapping[str, Any]) -> ConfigProblem:
    from jinja2.exceptions import SecurityError, TemplateSyntaxError, UndefinedError

    if isinstance(error, UndefinedError):
        return _undefined(node, str(error), context)
    if isinstance(error, TemplateSyntaxError):
        return node.problem(f"the template does not parse: {error.message}")
    if isinstance(error, _NoValueError):
        return node.problem(f"the template {error}")
    if isinstance(error, SecurityError):
        return node.problem("the template does something that is not allowed here")
    return node.problem(f"the template cannot be rendered: {type(error).__name__}: {error}")


def _undefined(node: Node, said: str, context: Mapping[str, Any]) -> ConfigProblem:
    name = next(
        iter(re.findall(r"(?:attribute|element) '(.*?)'|^'(.*?)' is undefined", said)), None
    )
    if name is None:
        return node.problem(f"the template cannot be rendered: {said}")
    missing = name[0] or name[1]
    known = _names(context)
    used = next(
        (f"{top}.{missing}" for top in context if f"{top}.{missing}" in str(node.value)), missing
    )
    hint = _nearest(used, missing, known)
    return node.problem(f"`{used}` is not defined", hint)


def _names(context: Mapping[str, Any]) -> list[str]:
    return [f"{top}.{key}" for top, values in context.items() for key in values]


def _nearest(used: str, missing: str, known: list[str]) -> str:
    same = [name for name in known if name.split(".", 1)[1] == missing]
    near = same or difflib.get_close_matches(used, known, 1, 0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    told = f"known: {', '.join(known)}" if known else "no variables are defined"
    if used.startswith("vars."):
        return f"give `{missing}` a value under `vars` in the inventory; {told}"
    return told
