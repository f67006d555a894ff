"""JSON schemas of an inventory and of a profile, for editors.

They follow the models and add what the loader allows beyond them: empty sections, and templates in
the values of a profile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, cast

from glm5_deploy.config.models import Inventory, Profile

Schema = dict[str, object]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE = r"\{[{%]"


def schema_text(kind: Literal["inventory", "profile"]) -> str:
    """The schema as the text of a file."""
    schema = inventory_schema() if kind == "inventory" else profile_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def profile_schema() -> Schema:
    """Of a profile's file."""
    schema = _with_templates(Profile.model_json_schema())
    return {"$schema": _DIALECT, **_with_empty_sections(schema)}


def inventory_schema() -> Schema:
    """Of an inventory; a host's `override` is a profile of which nothing is required."""
    schema = Inventory.model_json_schema()
    profile = _with_templates(Profile.model_json_schema())
    definitions = _mapping(schema, "$defs") | _mapping(profile, "$defs")
    for name in ("HostSettings", "Group"):
        override = _mapping(_mapping(_mapping(definitions, name), "properties"), "override")
        override.pop("type", None)
        override.pop("additionalProperties", None)
        override["$ref"] = "#/$defs/ProfileOverride"
    partial = {k: v for k, v in profile.items() if k not in ("$defs", "required", "title")}
    _mapping(definitions, "ModelFiles").pop("required")
    schema["$defs"] = definitions | {"ProfileOverride": partial}
    return {"$schema": _DIALECT, **_with_empty_sections(schema)}


def _mapping(schema: Schema, key: str) -> Schema:
    return cast(Schema, schema[key])


def _with_templates(schema: Schema) -> Schema:
    """Every value that is not plain text anyway may be a template instead."""
    changed = {key: _below(value, _with_templates, key) for key, value in schema.items()}
    kind = changed.get("type")
    if kind in ("integer", "number", "boolean", "array"):
        return changed | {"type": [kind, "string"], "pattern": _TEMPLATE}
    if kind == "string" and "pattern" in changed:
        return changed | {"pattern": f"{changed['pattern']}|{_TEMPLATE}"}
    return changed


def _with_empty_sections(schema: Schema) -> Schema:
    """Mappings and lists may be left empty, which YAML reads as null; the document may not."""
    return {key: _below(value, _nullable, key) for key, value in schema.items()}


def _nullable(schema: Schema) -> Schema:
    changed = {key: _below(value, _nullable, key) for key, value in schema.items()}
    if "patternProperties" in changed:
        changed["additionalProperties"] = False
    kind = changed.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return changed | ({"type": [*kinds, "null"]} if {"object", "array"} & {*kinds} else {})


def _below(value: object, change: Callable[[Schema], Schema], key: str) -> object:
    """A change made to each schema under a key; an `anyOf` that takes any text stays as it is."""
    if key == "propertyNames" or (
        key == "anyOf" and {"type": "string"} in cast("list[object]", value)
    ):
        return value
    if key in ("properties", "$defs"):
        return {name: change(schema) for name, schema in cast("dict[str, Schema]", value).items()}
    if isinstance(value, list):
        return [change(item) if isinstance(item, dict) else item for item in value]
    return change(cast(Schema, value)) if isinstance(value, dict) and key != "default" else value
