"""References to secrets, resolved at the moment of use and not before."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.command import Secret

EXEC_TIMEOUT = 30.0
"""Seconds that a command of ``${exec:…}`` may take: enough to unlock a password store by hand."""


def resolve_secret(reference: str, base: Path) -> Secret:
    """The secret behind ``${env:NAME}``, ``${file:path}`` or ``${exec:command arguments}``.

    One newline at the end of a file or of a command's output is dropped, and nothing else.

    Args:
        reference: as it stands in the configuration.
        base: folder that a file's path is relative to and that a command runs in.

    Raises:
        UsageError: it is no reference (what it is instead is never shown), or holds nothing.
    """
    kind, _, rest = reference.removeprefix("${").removesuffix("}").partition(":")
    resolver = _RESOLVERS.get(kind)
    if resolver is None or not rest or not (reference.startswith("${") and reference.endswith("}")):
        raise UsageError(
            "a secret is not given as a reference",
            "write ${env:NAME}, ${file:path} or ${exec:command arguments}",
        )
    value = resolver(rest, base)
    if not value:
        raise UsageError(f"{reference} is empty", "put the secret there, or name another place")
    return Secret(value)


def _from_environment(name: str, _base: Path) -> str:
    value = os.environ.get(name)
    if value is None:
        raise UsageError(
            f"the environment variable {name} is not set", f"export {name}=… before this command"
        )
    return value


def _from_file(text: str, base: Path) -> str:
    path = base / Path(text).expanduser()
    try:
        with path.open("rb") as file:
            # Of the open file, so that it cannot be another one by the time it is read.
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the secret in {path} cannot be read: {reason}",
            "a relative path starts from the folder of the file that names it",
        ) from error
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise UsageError(
            f"{path} holds a secret and everybody on this machine may use it",
            f"chmod 600 {shlex.quote(str(path))}",
        )
    return _text(content, str(path))


def _from_command(line: str, base: Path) -> str:
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise UsageError(
            f"${{exec:{line}}} does not parse: {str(error).lower()}", "quote it as for a shell"
        ) from error
    if not argv:
        raise UsageError("${exec:…} names no command", "write such as ${exec:pass show NAME}")
    done = _run(argv, base)
    if done.returncode != 0:
        raise UsageError(
            f"`{argv[0]}` of ${{exec:{line}}} ended with status {done.returncode}",
            _shown_stderr(done.stderr),
        )
    return _text(done.stdout, f"the output of `{argv[0]}`")


def _run(argv: list[str], base: Path) -> subprocess.CompletedProcess[bytes]:
    # It keeps the terminal as its input: a password store may have to ask for its own passphrase.
    try:
        return subprocess.run(
            argv, cwd=base, capture_output=True, timeout=EXEC_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"`{argv[0]}` gave no secret within {EXEC_TIMEOUT:.0f} seconds",
            _shown_stderr(error.stderr or b""),
        ) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(
            f"`{argv[0]}` cannot be run: {reason}",
            "name a program that is in PATH, without a shell",
        ) from error


def _shown_stderr(content: bytes) -> str | None:
    text = content.decode(errors="replace").strip()
    return f"it said: {text[-500:]}" if text else None


def _text(content: bytes, source: str) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text") from error
    return text.removesuffix("\n").removesuffix("\r")


_RESOLVERS: dict[str, Callable[[str, Path], str]] = {
    "env": _from_environment,
    "file": _from_file,
    "exec": _from_command,
}
