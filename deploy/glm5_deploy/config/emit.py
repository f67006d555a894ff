"""Values as YAML text on one line."""

from __future__ import annotations

import json

import yaml

from glm5_deploy.config.node import Plain


def flow(value: Plain) -> str:
    """JSON for what is no text: that is YAML too, and stays on its line."""
    return text(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def text(value: str) -> str:
    """A key or a text, quoted where it must be."""
    if not value.isprintable():
        escaped: str = yaml.safe_dump(value, default_style='"', width=_NO_WRAP)
        return escaped.removesuffix("\n")
    # PyYAML quotes by the rules of YAML 1.1, which quote more than 1.2 needs and never less.
    dumped: str = yaml.safe_dump(value, allow_unicode=True, width=_NO_WRAP)
    return dumped.removesuffix("\n").removesuffix("\n...")


_NO_WRAP = 1_000_000
