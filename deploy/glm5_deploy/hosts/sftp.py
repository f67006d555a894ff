"""Parts of files over SFTP: what a model's header needs of files of hundreds of gigabytes."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath

import paramiko

from glm5_deploy.errors import CommandFailedError

PIECE = 32 << 10
"""What servers give in one answer; pieces are asked for all at once."""


def start(name: str, channel: paramiko.Channel) -> paramiko.SFTPClient:
    """SFTP over a channel.

    Raises:
        CommandFailedError: the server has none.
    """
    try:
        channel.invoke_subsystem("sftp")
        return paramiko.SFTPClient(channel)
    except (paramiko.SSHException, EOFError, OSError) as error:
        channel.close()
        hint = "its sshd_config needs `Subsystem sftp internal-sftp`"
        raise CommandFailedError(f"{name}: its sshd offers no SFTP", hint) from error


def size(name: str, client: paramiko.SFTPClient, path: PurePosixPath) -> int | None:
    """See `Host.size`."""
    try:
        return client.stat(str(path)).st_size
    except FileNotFoundError:
        return None
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _failed(name, path, error) from error


def read_at(
    name: str, client: paramiko.SFTPClient, path: PurePosixPath, offset: int, length: int
) -> bytes:
    """See `Host.read_at`."""
    try:
        with client.open(str(path), "rb") as file:
            held = file.stat().st_size or 0
            end = min(offset + length, held)
            parts = [(at, min(PIECE, end - at)) for at in range(offset, end, PIECE)]
            return b"".join(file.readv(parts)) if parts else b""
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _failed(name, path, error) from error


def _failed(name: str, path: PurePosixPath, error: Exception) -> CommandFailedError:
    denied = isinstance(error, OSError) and error.errno in {errno.EACCES, errno.EPERM}
    hint = "the login user must be able to read the model's files" if denied else None
    return CommandFailedError(f"{name}: cannot read {path}: {error or type(error).__name__}", hint)
