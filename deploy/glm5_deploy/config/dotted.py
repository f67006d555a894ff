"""Arguments that are given in parts, with dots, as vLLM puts them together.

``hf-overrides.a.b: 1`` is ``hf-overrides: {a: {b: 1}}``. All parts of an argument become one
mapping, in whose place a whole one is passed over (vllm/utils/argparse_utils.py,
`FlexibleArgumentParser.parse_args`, 0.26.0 to 0.32.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def together(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with their parts in their places.

    Args:
        given: by vLLM's names; nothing in it is changed.
    """
    whole = {key: value for key, value in given.items() if "." not in key}
    parts: dict[str, Any] = {}
    for key, value in given.items():
        if "." in key:
            _put(parts, key.split("."), read_value(value))
    return whole | parts


def _put(place: dict[str, Any], path: list[str], value: object) -> None:
    """A value at its place; the later one wins, mappings merge."""
    head, *rest = path
    if rest or isinstance(value, dict):
        inner = place.get(head)
        place[head] = inner if isinstance(inner, dict) else {}
    if rest:
        _put(place[head], rest, value)
    elif isinstance(value, dict):
        for key, each in value.items():
            _put(place[head], [key], each)
    else:
        place[head] = value


def read_value(value: object) -> object:
    """What vLLM makes of a word: JSON where it is some, else the text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
