"""What a smoke check is handed, and how it says that it failed or has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx

from glm5_deploy.config.models import Profile, Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.smoke.api import Api

PROMPT = "The capital of France is"


class CheckFailed(Exception):  # noqa: N818
    """The server answered, but not as it should.

    Args:
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class CheckSkipped(Exception):  # noqa: N818
    """There is nothing to check here; the message says why."""


@dataclass(frozen=True)
class Context:
    """One server under test.

    Args:
        anonymous: a client that sends no key.
    """

    host: Host
    target: Target
    api: Api
    anonymous: httpx.Client
    api_key: Secret | None

    @property
    def profile(self) -> Profile:
        return self.target.profile


Probe = Callable[[Context], str]
"""Returns what a passed row says; raises `CheckFailed`, `CheckSkipped` or `AnswerError`."""
