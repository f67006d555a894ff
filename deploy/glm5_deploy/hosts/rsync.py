"""The rsync program over the same route as everything else, resumed when the connection breaks."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from glm5_deploy.config.address import bracketed
from glm5_deploy.errors import CommandFailedError, Glm5Error, UnreachableError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Progress, RsyncStats
from glm5_deploy.hosts.retry import FIRST_WAIT, LONGEST_WAIT
from glm5_deploy.hosts.ssh_client import client_config, write_private
from glm5_deploy.hosts.ssh_config import Route

PARTIAL = ".rsync-partial"
"""Where an unfinished file waits: never under its final name."""

CHECK_SECONDS = 0.5
"""How often a transfer that says nothing looks whether it should go on."""

PREPARE = r"""
command -v rsync >/dev/null || exit 45
mkdir -p -- "$1"
"""
"""$1 the folder. Run on the host before a transfer."""

NO_RSYNC = 45

CONNECTION_CODES = frozenset({10, 12, 20, 30, 35, 255})
"""rsync's exit codes for a connection that failed or broke, or a host that shuts down: trying again
resumes."""

MOST_ATTEMPTS = 100
"""An end even for a link that breaks again and again, a little further each time."""

PROGRESS = re.compile(r"^\s*([\d,]+)\s+(\d+)%\s+(\S+/s)")

LASTING = (
    ("No space left on device", "the disk is full there", "free some space, or use another root"),
    ("Disk quota exceeded", "the quota is used up there", None),
    (
        "Host key verification failed",
        "ssh does not accept its host key",
        "the key is not in the known_hosts files that ssh reads",
    ),
    ("Permission denied (13)", "no permission", "the login user must own what it writes"),
    (
        "Permission denied (",
        "ssh cannot log in",
        "an encrypted key needs connection.identity_passphrase or an agent",
    ),
    (
        "is your shell clean",
        "the login shell there prints something of its own",
        "make ~/.bashrc (or what the shell reads) silent for shells that are not interactive",
    ),
    ("Read-only file system", "the file system is read-only there", None),
    ("unknown option", "rsync is too old", "version 3.1 or newer is needed at both ends"),
    (
        "error in file I/O (code 11)",
        "a file cannot be written there, most often because the disk is full",
        "look for space there (df -h, df -i), or use another root",
    ),
)
"""What rsync or ssh says → what it means → what to do. None of it passes by itself. The last is the
receiver's end alone: what it says before may be lost with it."""


@dataclass(frozen=True)
class Transfer:
    """What is to be copied; see `Host.rsync`."""

    source: Path
    target: PurePosixPath
    include: tuple[str, ...] = ()
    delete: bool = False
    checksum: bool = False

    def arguments(self, destination: str, shell: str) -> list[str]:
        """rsync's argument list.

        Args:
            destination: the host, as ssh's configuration knows it.
            shell: the value of ``--rsh``.
        """
        source = self.source.absolute()
        return [
            "rsync",
            "--recursive",
            "--links",
            "--copy-unsafe-links",
            "--times",
            "--perms",
            # readable for the service's user, executable where the source is
            "--chmod=u=rwX,go=rX",
            "-s",  # the host's shell sees no path
            f"--partial-dir={PARTIAL}",
            "--no-inc-recursive",
            "--no-human-readable",
            "--info=progress2,stats2",
            "--outbuf=L",
            *(["--files-from=-", "--from0"] if self.include else []),
            *(["--delete"] if self.delete else []),
            *(["--checksum"] if self.checksum else []),
            f"--rsh={shell}",
            "--",
            f"{source}/" if source.is_dir() else str(source),
            f"{bracketed(destination)}:{self.target}/",
        ]

    def names(self) -> bytes:
        """Standard input: the names to copy, each ended by NUL."""
        return b"".join(os.fsencode(name) + b"\0" for name in self.include)


@dataclass
class Reading:
    """What rsync has printed so far."""

    moved: int = 0
    lines: list[str] = field(default_factory=list)

    def take(self, line: str, progress: Progress) -> None:
        """One line of output; those that rewrite themselves are progress."""
        found = PROGRESS.match(line)
        if found is None:
            self.lines.append(line)
            return
        self.moved = int(found[1].replace(",", ""))
        if not found[3].startswith("0.00"):  # No rate yet: nothing worth a line.
            progress(found[3], int(found[2]) / 100)

    def stats(self) -> RsyncStats:
        """The closing statistics."""
        text = "\n".join(self.lines)

        def number(title: str) -> int:
            found = re.search(rf"^{title}: ([\d,]+)", text, re.MULTILINE)
            return int(found[1].replace(",", "")) if found else 0

        files = number("Number of regular files transferred") + number("Number of deleted files")
        return RsyncStats(files, number("Total bytes sent"))


def environment(current: Mapping[str, str]) -> dict[str, str]:
    """rsync's environment: ours, in the C locale, without variables that change what rsync does.

    ``RSYNC_OLD_ARGS`` alone makes it write elsewhere without a word.
    """
    kept = {name: value for name, value in current.items() if not name.startswith("RSYNC_")}
    return {**kept, "LC_ALL": "C"}


def transfer(
    name: str,
    wanted: Transfer,
    route: Route,
    *,
    keepalive: int,
    attempts: int,
    passphrase: Callable[[], Secret] | None,
    progress: Progress,
    check: Callable[[], None],
    cancelled: threading.Event,
    register: Callable[[Callable[[], None]], None],
) -> RsyncStats:
    """Copy, resuming after a broken connection.

    Args:
        name: the host's, for messages.
        attempts: in a row without any progress.
        check: raises to end the transfer; called at least every half second.
        cancelled: set when the host is closed.
        register: gets what ends the running program, for another thread to call.

    Raises:
        UnreachableError: the connection does not come, or broke too often.
        CommandFailedError: anything else that rsync says.
    """
    with _prepared(route, keepalive, passphrase) as (shell, extra):
        arguments = wanted.arguments(route.alias, shell)
        variables = {**environment(os.environ), **extra}
        left = attempts
        for number in range(MOST_ATTEMPTS):
            reading = Reading()
            returncode, errors = _run(
                arguments, variables, wanted.names(), reading, progress, check, register
            )
            if returncode == 0:
                return reading.stats()
            if cancelled.is_set():
                raise UnreachableError(f"{name}: the connection was closed")
            error = explain(name, wanted, returncode, errors)
            left = attempts if reading.moved else left - 1
            lasting = not isinstance(error, UnreachableError)
            if lasting or left < 1 or number == MOST_ATTEMPTS - 1:
                raise error
            progress("connection lost, resuming", None)
            until = time.monotonic() + min(FIRST_WAIT * 2 ** (attempts - left), LONGEST_WAIT)
            while time.monotonic() < until:
                check()
                if cancelled.wait(CHECK_SECONDS):
                    raise error
    raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _prepared(
    route: Route, keepalive: int, passphrase: Callable[[], Secret] | None
) -> Iterator[tuple[str, dict[str, str]]]:
    """rsync's remote shell and the variables it needs."""
    from glm5_deploy.hosts.askpass import askpass

    with tempfile.TemporaryDirectory(prefix="glm5-ssh-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        config = folder / "config"
        write_private(
            config, client_config(route, keepalive=keepalive, asks=passphrase is not None)
        )
        extra = {} if passphrase is None else stack.enter_context(askpass(folder, passphrase))
        yield shlex.join(["ssh", "-F", str(config)]), extra


def _run(
    arguments: list[str],
    variables: dict[str, str],
    names: bytes,
    reading: Reading,
    progress: Progress,
    check: Callable[[], None],
    register: Callable[[Callable[[], None]], None],
) -> tuple[int, str]:
    """One attempt: its exit code and what it said on stderr."""
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,  # Ctrl-C reaches us alone; we end it in an orderly way
        )
    except FileNotFoundError:
        raise CommandFailedError("rsync is not installed here", "apt-get install rsync") from None
    register(lambda: end(process))
    errors: list[bytes] = []
    stdout, stderr = process.stdout, process.stderr
    assert stdout is not None
    assert stderr is not None
    threads = (
        threading.Thread(target=lambda: errors.append(stderr.read()), daemon=True),
        threading.Thread(target=_feed, args=(process, names), daemon=True),
    )
    for thread in threads:
        thread.start()
    try:
        for line in _lines(stdout.fileno()):
            check()
            if line is not None:
                reading.take(line, progress)
        returncode = process.wait()
    finally:
        end(process)
        for thread in threads:
            thread.join(timeout=5)
    return returncode, b"".join(errors).decode(errors="replace")


def _feed(process: subprocess.Popen[bytes], names: bytes) -> None:
    assert process.stdin  # a pipe
    with contextlib.suppress(BrokenPipeError, ValueError):
        process.stdin.write(names)
    with contextlib.suppress(BrokenPipeError, ValueError):
        process.stdin.close()


def _lines(descriptor: int) -> Iterator[str | None]:
    """Lines as they come, None where none comes for a while; a carriage return ends one too, since
    progress rewrites its line.
    """
    pending = b""
    while True:
        if not select.select([descriptor], [], [], CHECK_SECONDS)[0]:
            yield None
            continue
        data = os.read(descriptor, 1 << 16)
        if not data:
            break
        *whole, pending = re.split(rb"[\r\n]", pending + data)
        yield from (line.decode(errors="replace") for line in whole)
    if pending:
        yield pending.decode(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """End rsync and its ssh: asked first, so that it keeps what has arrived, then for good."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return


def explain(name: str, wanted: Transfer, returncode: int, errors: str) -> Glm5Error:
    """The error for an exit code and what was said."""
    lines = errors.strip().splitlines()[-6:]
    said = "\n".join([line for line in lines if not line.startswith("rsync error:")] or lines)
    what = f"{name}: cannot copy {wanted.source} to {wanted.target}"
    for text, meaning, hint in LASTING:
        if text in errors:
            return CommandFailedError(f"{what}: {meaning}: {said}", hint)
    if returncode in CONNECTION_CODES:
        return UnreachableError(f"{what}: the connection broke: {said or f'status {returncode}'}")
    return CommandFailedError(f"{what}: rsync ended with status {returncode}: {said}")
