"""Errors that a user sees: what went wrong, and what to do about it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``glm5-deploy``; `worst` picks one where several hosts differ."""

    DONE = 0
    HOST_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    SMOKE_FAILED = 4
    INTERRUPTED = 130

    @classmethod
    def worst(cls, codes: list[ExitCode]) -> ExitCode:
        """The first of 130, 2, 4, 1, 3 that occurs, or 0."""
        order = (cls.INTERRUPTED, cls.USAGE, cls.SMOKE_FAILED, cls.HOST_FAILED, cls.UNREACHABLE)
        return next((code for code in order if code in codes), cls.DONE)


class Glm5Error(Exception):
    """Base of all errors with a message for the user and, where one is known, a remedy.

    Args:
        message: what is wrong, and where.
        hint: what would be right: a command to run or a value to set.
    """

    exit_code = ExitCode.HOST_FAILED

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(Glm5Error):
    """A wrong flag, or a combination that makes no sense."""

    exit_code = ExitCode.USAGE


class StoppedError(Glm5Error):
    """Ctrl-C, or a signal that asks this program to end."""

    exit_code = ExitCode.INTERRUPTED


class UnreachableError(Glm5Error):
    """No SSH session to a host: network, host key, authentication, or a connection that broke."""

    exit_code = ExitCode.UNREACHABLE


class CommandFailedError(Glm5Error):
    """A remote command ended with a status that its caller does not accept."""


class CommandTimeoutError(Glm5Error):
    """A remote command was still running at its limit."""


class SudoRefusedError(Glm5Error):
    """sudo is missing, wants a password that was not given, or rejects it."""


class LockHeldError(Glm5Error):
    """Another run holds the host's lock."""


class PreflightError(Glm5Error):
    """The host cannot take this deployment; nothing was changed."""


class RevertedError(Glm5Error):
    """The new release did not prove itself and the previous state is back."""

    exit_code = ExitCode.SMOKE_FAILED


class RevertFailedError(Glm5Error):
    """The new release did not prove itself and could not be taken back either."""


class SmokeFailedError(Glm5Error):
    """A running server did not answer as it should."""

    exit_code = ExitCode.SMOKE_FAILED
