from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target


@pytest.fixture
def target() -> Target:
    profile = Profile.model_validate({"name": "tiny", "model": {"name": "tiny"}})
    return Target(name="bw1", settings=HostSettings(), profile=profile)


def _line(message: object, number: int = 1, priority: int = 6) -> str:
    return json.dumps(
        {
            "__REALTIME_TIMESTAMP": str(1_795_000_000_000_000 + number * 1_000_000),
            "__CURSOR": f"c{number}",
            "PRIORITY": str(priority),
            "MESSAGE": message,
        }
    )


@pytest.fixture
def journal_line() -> Callable[..., str]:
    """Makes one line of journalctl's JSON: message, number, priority."""
    return _line
