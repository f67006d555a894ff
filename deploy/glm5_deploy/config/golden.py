"""golden.json: prompts of a tiny model and what its reference answers.

`python -m glm5_kernel make-tiny` writes it beside the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glm5_deploy.errors import UsageError

FORMAT = 1


def read_golden(path: Path) -> list[dict[str, Any]]:
    """The prompts of a golden.json: each has ``name``, ``prompt`` and ``tokens``.

    Raises:
        UsageError: it is none, or one of another format.
    """
    hint = "make it anew: `python -m glm5_kernel make-tiny` writes it beside the model"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        prompts = [dict(each) for each in document["prompts"]]
        complete = all(each["prompt"] and each["tokens"] and each["name"] for each in prompts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {error or 'no golden.json'}", hint) from error
    if document.get("format") != FORMAT:
        raise UsageError(f"{path}: format {document.get('format')}; {FORMAT} is right", hint)
    if not prompts or not complete:
        raise UsageError(f"{path}: it holds no prompt, or an empty one", hint)
    return prompts
