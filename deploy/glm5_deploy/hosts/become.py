"""How a command is wrapped for the host, and how sudo's answer is told from the command's.

Two constant scripts carry every command: `GUARD` runs it under a limit and ends it when the
connection goes; `BECOME` puts sudo (or nothing, or runuser) before that. Sudo asks with a prompt of
ours and the password is sent when that prompt is seen, once: it is never in an argument, never
ahead of the command's own input, and a wrong one costs one attempt. The guard's first line on
stderr says that the command's own output begins.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

from glm5_deploy.errors import SudoRefusedError
from glm5_deploy.hosts.command import Command, script

GUARD = r"""
limit=$1 lifeline=$2 start=$3; shift 3
umask 022
LC_ALL=C; PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export LC_ALL PATH
[ -z "$start" ] || printf '%s\n' "$start" >&2
if [ "$lifeline" = 1 ]; then
  exec 3<&0 </dev/null
  {
    while read -r line; do :; done <&3
    read -r pid name state parent rest </proc/self/stat
    [ "$parent" != "$$" ] || kill -TERM "$$"
  } >/dev/null 2>&1 &
  exec 3<&-
fi
exec timeout -k 5 "$limit" sh -c 'trap : TERM; "$@"; exit $?' glm5-deploy "$@"
"""
"""$1 seconds (0: no limit), $2 1: standard input is a lifeline and not the command's, $3 line that
marks the start, then the command. A login's own umask (077 on hardened hosts) would make folders
that a service cannot enter.

``timeout`` leads a process group of its own and passes a TERM on to all of it, KILL after 5 s. The
inner shell turns a death by signal into status 128+n, which every SSH library reports.
"""

BECOME = r"""
user=$1 prompt=$2; shift 2
LC_ALL=C; PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export LC_ALL PATH
if [ "$(id -u)" = 0 ]; then
  [ "$user" != root ] || exec "$@"
  if command -v runuser >/dev/null; then
    HOME=$(getent passwd "$user" | cut -d: -f6) USER=$user LOGNAME=$user; export HOME USER LOGNAME
    exec runuser -u "$user" -- "$@"
  fi
fi
command -v sudo >/dev/null || { echo 'sudo: not installed' >&2; exit 126; }
if [ -n "$prompt" ]; then exec sudo -S -H -p "$prompt" -u "$user" -- "$@"; fi
exec sudo -n -H -u "$user" -- "$@"
"""
"""$1 user, $2 prompt (empty: there is no password to give), then the command."""


def for_any_shell(command: Command) -> str:
    """The text that sshd hands to the user's login shell, which may be fish or csh.

    Those read single quotes otherwise than a POSIX shell does, so everything they could misread is
    written as an octal escape, and sh itself takes the escapes back.
    """
    encoded = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\!" else f"\\0{byte:03o}"
        for byte in command.shell().encode()
    )
    return f"exec sh -c 'eval \"exec $(printf %b \"$1\")\"' sh '{encoded}'"


@dataclass(frozen=True)
class Handshake:
    """The marks of one call, drawn at random so that no output is taken for them.

    Args:
        start: the guard's line.
        prompt: what sudo asks with; empty where there is no password.
    """

    start: str
    prompt: str

    @classmethod
    def draw(cls, *, password: bool) -> Handshake:
        mark = secrets.token_hex(8)
        return cls(f"glm5-start-{mark}", f"glm5-password-{mark}:" if password else "")


def guarded(command: Command, *, limit: float, lifeline: bool, start: str = "") -> Command:
    """The command under `GUARD`.

    Args:
        limit: seconds after which the host ends it; 0: none.
        lifeline: it has no input of its own and ends when the connection does.
    """
    return script(GUARD, f"{limit:g}", int(lifeline), start, *command.words())


def become(command: Command, user: str, handshake: Handshake) -> Command:
    """The guarded command as another user."""
    return script(BECOME, user, handshake.prompt, *command.words())


@dataclass
class Opening:
    """Reads stderr until the command's own begins.

    `feed` returns what to do next: ``password`` (send it), ``wrong`` (asked again: give up),
    ``started``, or None (wait for more).
    """

    handshake: Handshake
    said: bytes = b""
    asked: bool = False
    started: bool = False

    def feed(self, data: bytes) -> Literal["password", "wrong", "started"] | None:
        self.said += data
        prompt = self.handshake.prompt.encode()
        mark = f"{self.handshake.start}\n".encode()
        if mark in self.said:
            self.started = True
            self.said = self.said.partition(mark)[2]
            return "started"
        if prompt and prompt in self.said:
            if self.asked:
                return "wrong"
            self.asked = True
            self.said = self.said.replace(prompt, b"")
            return "password"
        return None


REFUSALS = (
    (
        ("sudo: not installed",),
        "sudo is not installed there",
        "install sudo, or log in as root (connection.user: root)",
    ),
    (
        ("password is required", "a password is needed", "askpass"),
        "sudo wants a password and none is given",
        "set become.password to a reference (${env:NAME}, ${file:…}, ${exec:…}), "
        "or allow the user NOPASSWD in sudoers",
    ),
    (
        ("have a tty", "requiretty"),
        "sudo wants a terminal (requiretty)",
        "in sudoers: Defaults:USER !requiretty",
    ),
    (
        ("not in the sudoers", "not allowed to", "may not run sudo", "not allowed to execute"),
        "the user may not use sudo for this",
        "allow it in sudoers (visudo), or log in as another user",
    ),
    (
        ("unknown user", "does not exist"),
        "there is no such user on the host",
        None,
    ),
    (
        ("incorrect password", "try again", "no password was provided"),
        "sudo rejects the password",
        "check become.password for this host",
    ),
)
"""What sudo says (in the C locale) → what it means → what to do."""


def refusal(
    host: str, login_user: str, user: str, opening: Opening, *, wrong: bool
) -> SudoRefusedError:
    """The error for a command that never began."""
    said = " ".join(opening.said.decode(errors="replace").split())
    who = f"{host}: {login_user} cannot become {user}"
    if wrong:
        return SudoRefusedError(
            f"{who}: sudo rejects the password", "check become.password for this host"
        )
    for patterns, meaning, hint in REFUSALS:
        if any(pattern in said for pattern in patterns):
            return SudoRefusedError(f"{who}: {meaning}", hint)
    return SudoRefusedError(f"{who}: {said or 'sudo ended without a word'}")
