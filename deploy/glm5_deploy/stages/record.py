"""What a release says of itself on the host: its `profile.json`, which `stages.desired` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from glm5_deploy.errors import Glm5Error

_OURS = ("venv", "model_sha256", "secret_names")
"""What stands there beside the profile."""


class RecordError(Glm5Error):
    """A release's record is torn, or not one that this version of the program writes."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            f"{where} cannot be read: {why}",
            "on the host remove .done beside it: then `glm5-deploy up` writes that release anew,"
            " if it is the one that is wanted",
        )


@dataclass(frozen=True)
class Record:
    """A release's own description.

    Args:
        venv: the environment's name; None where the release has none of ours.
        kernel: whether glm5-kernel is in it.
        profile: as it was merged then, without what restarts nothing: tests, limits, needs,
            secrets.
    """

    venv: str | None
    kernel: bool
    profile: dict[str, Any]


def parse_record(text: str, where: str) -> Record:
    """Read a `profile.json`.

    Args:
        where: host and file, or release: for the message.

    Raises:
        RecordError: it is damaged.
    """
    try:
        document = json.loads(text)
        profile = {name: value for name, value in document.items() if name not in _OURS}
        venv, kernel = document["venv"], document["engine"]["kernel"]
    except ValueError as error:
        raise RecordError(where, str(error)) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise RecordError(where, "it is no record of a release") from error
    if not isinstance(venv, str | None) or not isinstance(kernel, bool):
        raise RecordError(where, "it is no record of a release")
    return Record(venv, kernel, profile)
