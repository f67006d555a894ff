"""For all tests."""

from __future__ import annotations

import signal

# A shell starts background jobs with Ctrl-C ignored, which programs under test would inherit: those
# that test it would fail whenever the suite runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
