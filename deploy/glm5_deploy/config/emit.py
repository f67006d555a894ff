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
    # PyYAML quotes by the rules of YAML 1.1, which quote more than 1.2 needs and never less.
    dumped: str = yaml.safe_dump(value, allow_unicode=True, width=1_000_000)
    line = dumped.removesuffix("\n").removesuffix("\n...")
    return line if "\n" not in line else json.dumps(value, ensure_ascii=False)
