"""Writes the pages that follow from the code: keys.md (the models), commands.md (the program).

    python docs/reference.py           write both
    python docs/reference.py --check   say which are not as they would be written; status 1

A test runs the second, so that neither page can be out of date.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from glm5_deploy.cli.app import app
from glm5_deploy.config import models
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/reference.py: change the code, then run that. -->\n"
EXAMPLE = re.compile(r"Example: (glm5-deploy .*)")

KEYS_HEAD = """
# Inventory and profile keys

Every key, its type, its default and what it means, as the program itself knows them.
[Inventory and profiles](inventory.md) explains how they work together. A key that is not here is
an error.

A *reference* is `${env:NAME}`, `${file:path}` or `${exec:command}`. A *local path* is relative to
the file that names it; a *host path* is absolute. A *name* holds letters, digits, `.`, `_` and `-`,
and begins with a letter or digit.
"""
COMMANDS_HEAD = """
# Commands

Results go to standard output, everything else to standard error. `--json` prints one JSON document;
commands that go on (`logs -f`, `status --watch`) print one JSON object a line.
The [quick start](index.md#exit-codes) has the exit codes,
[operations](operations.md#json-documents) the shapes of the documents.

`glm5-deploy --install-completion` adds completion to your shell; it knows the hosts,
groups and profiles of your inventory.
"""
SECTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("The inventory file", models.Inventory, ""),
    ("`defaults`, a group, a host", models.HostSettings, ""),
    ("A group, beside those", models.Group, ""),
    ("`connection`", models.Connection, "connection."),
    ("`become`", models.Become, "become."),
    ("`packages`", models.Packages, "packages."),
    ("A profile file", models.Profile, ""),
    ("`model`", models.ModelFiles, "model."),
    ("`engine`", models.Engine, "engine."),
    ("`engine.base`", models.Base, "engine.base."),
    ("`serve`", models.Serve, "serve."),
    ("`gpus`", models.Gpus, "gpus."),
    ("`needs`", models.Needs, "needs."),
    ("`limits`", models.Limits, "limits."),
    ("`unit`", models.Unit, "unit."),
    ("`smoke`", models.Smoke, "smoke."),
    ("`smoke.expect`, each entry", models.SmokePrompt, ""),
    ("`smoke.needle`", models.Needle, "smoke.needle."),
)


# --- keys ----------------------------------------------------------------------------------------


def keys_page() -> str:
    """All models as tables."""
    parts = [NOTE, KEYS_HEAD]
    for title, model, prefix in SECTIONS:
        text = " ".join((model.__doc__ or "").split())
        parts.append(f"\n## {title}\n\n{text}\n\n{_table(model, prefix)}")
    return "".join(parts)


def _table(model: type[BaseModel], prefix: str) -> str:
    # A group has the settings of its base too, which stand in their own table.
    inherited = set() if model.__base__ is None else set(_fields(model.__base__))
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in _fields(model).items():
        if name in inherited:
            continue
        meaning = _cell(field.description or "")
        rows.append(f"| `{prefix}{name}` | {_type(field)} | {_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _fields(model: type[Any]) -> Mapping[str, FieldInfo]:
    return getattr(model, "model_fields", {})


def _type(field: FieldInfo) -> str:
    if any(str(getattr(rule, "pattern", "")).startswith(r"^\$\{") for rule in field.metadata):
        return "reference"
    if any(getattr(rule, "max_length", None) == 64 for rule in field.metadata):
        return "name"
    return _cell(_name(field.annotation))


def _name(kind: Any) -> str:  # noqa: ANN401  # any annotation
    if get_origin(kind) is Annotated:
        return _annotated(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(_name(part) for part in arguments if part is not type(None))
        )
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (list, tuple):
        return f"list of {_plural(_name(arguments[0]))}"
    if origin is dict:
        inner = _name(arguments[1])
        return "mapping" if inner == "any value" or " or " in inner else f"mapping to {inner}s"
    return _plain(kind)


def _annotated(kind: Any) -> str:  # noqa: ANN401
    if kind == models.SecretReference:
        return "reference"
    return "name" if kind == models.Name else _name(get_args(kind)[0])


def _plain(kind: Any) -> str:  # noqa: ANN401
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return "host path" if kind is PurePosixPath else "local path"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "mapping"
    known = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return known.get(kind, "any value")


def _plural(name: str) -> str:
    return {"text": "texts", "mapping": "mappings"}.get(name, f"{name}s")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, list):
        value = [str(item) if isinstance(item, PurePath) else item for item in value]
    text = str(value) if isinstance(value, PurePath | str) else json.dumps(value)
    return f"`{_cell(text)}`" if text else "empty"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- commands ------------------------------------------------------------------------------------


def commands_page() -> str:
    """All commands with their options and examples."""
    parts = [NOTE, COMMANDS_HEAD]
    for name, command in _commands(typer.main.get_command(app)):
        parts.append(_command(name, command))
    return "".join(parts)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _command(name: str, command: Any) -> str:  # noqa: ANN401
    said = " ".join((command.help or "").split("\n"))
    example = EXAMPLE.search(command.help or "")
    text = said if example is None else said.replace(example[0], "")
    paragraphs = "\n\n".join(_wrapped(text))
    shown = f"\n```console\n$ {example[1]}\n```\n" if example else ""
    return f"\n## {name}\n\n{paragraphs}\n{shown}\n{_options(command)}"


def _wrapped(text: str) -> list[str]:
    import textwrap

    parts = (" ".join(part.split()) for part in text.split("  "))
    return [textwrap.fill(part, 118, break_on_hyphens=False) for part in parts if part]


def _options(command: Any) -> str:  # noqa: ANN401
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    rows += [_option(param) for param in command.params if param.name != "help"]
    return "\n".join(rows) + "\n"


def _option(param: Any) -> str:  # noqa: ANN401
    name, counted = param.name.upper(), getattr(param, "count", False)
    if not param.opts[0].startswith("-"):
        names, value = f"`{param.metavar or name}`", ""
    else:
        names = ", ".join(f"`{text}`" for text in sorted(param.opts, key=len, reverse=True))
        value = "" if param.is_flag or counted else f" `{param.metavar}`".replace("|", "\\|")
    unsaid = param.default is None or param.default is False or counted
    default = "" if unsaid else f"`{param.default}`"
    return f"| {names}{value} | {default} | {_cell(param.help or '')} |"


# --- both ----------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """The text of each page by its file."""
    return {HERE / "keys.md": keys_page(), HERE / "commands.md": commands_page()}


def main(words: list[str]) -> int:
    """Write the pages, or check them; gives the exit status."""
    stale = [path for path, text in pages().items() if _read(path) != text]
    if "--check" in words:
        for path in stale:
            print(f"{path} is out of date: run python docs/reference.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        print(path)
    return 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
