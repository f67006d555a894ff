"""What to do about a host's own words, whichever command they are the last of."""

from __future__ import annotations

import re

_REMEDIES = (
    (
        r"No space left on device|Disk quota exceeded",
        "free some space on the host, or set root to a larger disk; then run it again",
    ),
    (
        r"Read-only file system",
        "mount that file system so that it can be written, or set root to another one",
    ),
)


def known_remedy(said: str) -> str | None:
    """For a disk that is full or cannot be written; None where the words tell nothing."""
    return next((hint for pattern, hint in _REMEDIES if re.search(pattern, said)), None)
