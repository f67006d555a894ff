"""Gives an OpenSSH program a passphrase through a named pipe.

So it is in no argument, no variable and no file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from glm5_deploy.errors import Glm5Error
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.ssh_client import write_private

HELPER = """#!/bin/sh
IFS= read -r line < "${0%/*}/passphrase" && printf '%s\\n' "$line"
"""
"""ssh runs it and reads its output. One line, for on a busy machine the next answer may come before
the end of this one is seen; printf is the shell's own, so that no list of processes shows it."""


@contextlib.contextmanager
def askpass(folder: Path, secret: Callable[[], Secret]) -> Iterator[dict[str, str]]:
    """Serve a secret to programs that run meanwhile.

    Args:
        folder: private to us (mode 0700).
        secret: called when a program asks, and not before.

    Yields:
        the environment variables that such a program needs (OpenSSH 8.4 or newer).
    """
    pipe, helper = folder / "passphrase", folder / "askpass"
    os.mkfifo(pipe, 0o600)
    write_private(helper, HELPER, 0o700)
    done = threading.Event()
    server = threading.Thread(target=_serve, args=(pipe, secret, done), daemon=True)
    server.start()
    try:
        yield {"SSH_ASKPASS": str(helper), "SSH_ASKPASS_REQUIRE": "force"}
    finally:
        done.set()
        # a reader frees the server that waits for one
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        server.join(timeout=5)
        os.close(descriptor)


def _serve(pipe: Path, secret: Callable[[], Secret], done: threading.Event) -> None:
    while not done.is_set():
        descriptor = os.open(pipe, os.O_WRONLY)
        # Closing sends what a reader that has gone did not take, and fails once more.
        with (
            contextlib.suppress(BrokenPipeError, Glm5Error),
            os.fdopen(descriptor, "w", encoding="utf-8") as writer,
        ):
            if not done.is_set():
                writer.write(f"{secret().value}\n")
                writer.flush()
        # the reader must see the end before the next one is served
        done.wait(0.05)
