"""What the program ships stands apart from these tests: they bring their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from glm5_deploy.config import locks, profiles
from hypothesis import settings

# A loaded machine is no reason to fail.
settings.register_profile("config", deadline=None)
settings.load_profile("config")


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Locks and profiles from the folder beside this file."""
    folder = Path(__file__).parent / "shipped"
    for module in (locks, profiles):
        monkeypatch.setattr(module, "resource_dir", lambda kind: folder / kind)
    return folder
