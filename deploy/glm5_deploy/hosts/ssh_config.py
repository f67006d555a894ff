"""What OpenSSH itself would do to reach a host, asked of OpenSSH: `Route`.

``ssh -G`` evaluates the user's configuration exactly (Include, Match, tokens, canonical names),
takes 4 ms, and is what rsync's ssh will do later; paramiko's own reader knows no Include and Fabric
misreads ``ProxyJump a,b``, ``ProxyJump none`` and ``ConnectTimeout none``.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from glm5_deploy.config.models import Connection
from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import UnreachableError, UsageError

DEFAULT_CONNECT_TIMEOUT = 10.0
"""Seconds for TCP, banner and key exchange each."""

MAX_JUMPS = 8

Options = Mapping[str, tuple[str, ...]]
"""Lower-case keyword → its values, as ``ssh -G`` prints them."""


@dataclass(frozen=True)
class Route:
    """How one SSH server is reached.

    Args:
        alias: the name that the configuration was looked up by.
        address: host name or IP address to dial.
        identity_files: private keys in the order in which they are tried.
        identity_agent: socket of the agent; None: there is none to ask.
        identities_only: agent keys count only where a file of identity_files names them.
        proxy_command: shell command whose input and output are the connection, tokens expanded.
        jumps: hops before this one, the first is dialled first; each is a complete route but for
            what lies before it.
        known_hosts: the user's files; the first is the one named in advice.
        system_known_hosts: the machine's files.
        host_key_name: the name in known_hosts, with its port where that is not 22.
        config_file: the inventory's ssh_config, instead of the user's.
        own_identity: the inventory's key file, which must be there.
    """

    alias: str
    address: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identity_agent: str | None
    identities_only: bool
    proxy_command: str | None
    jumps: tuple[Route, ...]
    connect_timeout: float
    known_hosts: tuple[Path, ...]
    system_known_hosts: tuple[Path, ...]
    host_key_name: str
    config_file: Path | None = None
    own_identity: Path | None = None

    @property
    def label(self) -> str:
        """For messages: ``user@address``, with the port where it is not 22."""
        port = "" if self.port == 22 else f" port {self.port}"
        return f"{self.user}@{self.address}{port}"


@dataclass(frozen=True)
class Hop:
    """One element of ``ProxyJump``: ``[user@]host[:port]`` or ``ssh://[user@]host[:port]``."""

    host: str
    user: str | None
    port: int | None


def parse_hop(text: str) -> Hop:
    """Read one hop.

    Raises:
        UsageError: no host, or a port that is no number.
    """
    rest = text.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = rest.rpartition("@")
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host, port = rest, ""
    number = natural(port)
    if not host or host.startswith("-") or (port and number is None):
        raise UsageError(f"proxy jump {text!r} is not user@host:port")
    return Hop(host, user if at else None, number)


def parse_options(text: str) -> Options:
    """Read the output of ``ssh -G``: a keyword may occur several times."""
    options: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        options[keyword.lower()] = (*options.get(keyword.lower(), ()), value)
    return options


def query_openssh(alias: str, arguments: tuple[str, ...]) -> Options:
    """Ask the OpenSSH client what it would do.

    Raises:
        UsageError: it is not installed, or the configuration is wrong.
    """
    try:
        done = subprocess.run(
            ["ssh", "-G", "-T", "-a", *arguments, "--", alias],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(
            "the OpenSSH client is not installed here", "apt-get install openssh-client"
        ) from None
    if done.returncode != 0:
        raise UsageError(f"ssh cannot use its configuration for {alias}: {done.stderr.strip()}")
    return parse_options(done.stdout)


Query = Callable[[str, tuple[str, ...]], Options]


def resolve(name: str, connection: Connection, *, query: Query = query_openssh) -> Route:
    """The route to a host: the inventory's settings first, then the user's ssh_config.

    Args:
        name: the host's name in the inventory, used where the connection has no address.

    Raises:
        UsageError: a configuration that cannot be read, or a jump that is malformed or endless.
    """
    alias = connection.address or name
    if alias.startswith("-"):
        raise UsageError(f"{alias!r} is no address")
    options = query(alias, query_arguments(connection))
    route = _route(alias, connection, options)
    jump = options.get("proxyjump", ("none",))[0]
    if jump != "none":
        return replace(route, jumps=_jumps(jump, connection, query, depth=1), proxy_command=None)
    return route


def query_arguments(connection: Connection) -> tuple[str, ...]:
    """The inventory's settings as arguments for ``ssh -G``, where they win."""
    pairs = (
        ("-F", connection.ssh_config and str(connection.ssh_config.expanduser())),
        ("-l", connection.user),
        ("-p", connection.port and str(connection.port)),
    )
    arguments = tuple(part for flag, value in pairs if value for part in (flag, value))
    if connection.proxy_jump is not None:
        return (*arguments, "-o", f"ProxyJump={connection.proxy_jump}")
    return arguments


def _jumps(text: str, connection: Connection, query: Query, depth: int) -> tuple[Route, ...]:
    """All hops in dialling order. Only the first hop's own proxy counts, as in OpenSSH."""
    if depth > MAX_JUMPS:
        raise UsageError(f"proxy jumps lead in a circle, or are more than {MAX_JUMPS}: {text}")
    routes: list[Route] = []
    for number, element in enumerate(text.split(",")):
        hop = parse_hop(element)
        settings = connection.model_copy(
            update={"address": hop.host, "user": hop.user, "port": hop.port, "proxy_jump": None}
        )
        options = query(hop.host, query_arguments(settings))
        route = _route(hop.host, settings, options)
        further = options.get("proxyjump", ("none",))[0]
        if number > 0:
            route = replace(route, proxy_command=None)
        elif further != "none":
            routes.extend(_jumps(further, connection, query, depth + 1))
        routes.append(route)
    return tuple(routes)


def _route(alias: str, connection: Connection, options: Options) -> Route:
    def first(keyword: str, default: str) -> str:
        return options.get(keyword, (default,))[0]

    address, port, user = first("hostname", alias), int(first("port", "22")), first("user", "")
    user = user or getpass.getuser()
    tokens = _tokens(alias, address, port, user)
    proxy = first("proxycommand", "none")
    own_hosts = connection.known_hosts
    timeout = first("connecttimeout", "none")
    return Route(
        alias=alias,
        address=address,
        port=port,
        user=user,
        identity_files=_identity_files(connection, options, tokens),
        identity_agent=_agent(first("identityagent", "SSH_AUTH_SOCK"), tokens),
        identities_only=first("identitiesonly", "no") == "yes",
        proxy_command=None if proxy == "none" else expand(proxy, tokens),
        jumps=(),
        connect_timeout=connection.connect_timeout
        or float(natural(timeout) or DEFAULT_CONNECT_TIMEOUT),
        known_hosts=(own_hosts.expanduser(),)
        if own_hosts
        else split_paths(first("userknownhostsfile", ""), tokens),
        system_known_hosts=split_paths(first("globalknownhostsfile", ""), tokens),
        host_key_name=known_hosts_name(first("hostkeyalias", ""), address, port),
        config_file=connection.ssh_config and connection.ssh_config.expanduser(),
        own_identity=connection.identity_file and connection.identity_file.expanduser(),
    )


def known_hosts_name(alias: str, address: str, port: int) -> str:
    """The name that known_hosts has for a server."""
    if alias and alias != "none":
        return alias
    return address if port == 22 else f"[{address}]:{port}"


def _identity_files(
    connection: Connection, options: Options, tokens: Mapping[str, str]
) -> tuple[Path, ...]:
    own = (connection.identity_file,) if connection.identity_file else ()
    named = (Path(expand(text, tokens)) for text in options.get("identityfile", ()))
    every = [
        path.expanduser() for path in (*own, *(path for path in named if path != Path("none")))
    ]
    return tuple(dict.fromkeys(every))


def _agent(value: str, tokens: Mapping[str, str]) -> str | None:
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$"):
        return os.environ.get(value.lstrip("$").strip("{}")) or None
    return os.path.expanduser(expand(value, tokens))


def split_paths(text: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """Several paths on one line; ``ssh -G`` prints no quotes, so a word that cannot start a path
    goes on with the one before.
    """
    paths: list[str] = []
    for word in text.split(" "):
        if not paths or word.startswith(("/", "~")):
            paths.append(word)
        else:
            paths[-1] += f" {word}"
    return tuple(
        Path(expand(path, tokens)).expanduser() for path in paths if path not in ("", "none")
    )


def _tokens(alias: str, address: str, port: int, user: str) -> dict[str, str]:
    return {
        "%": "%",
        "h": address,
        "n": alias,
        "k": alias,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
        "i": str(os.getuid()),
        "d": str(Path.home()),
        "l": socket.gethostname(),
        "L": socket.gethostname().split(".")[0],
    }


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ``%h`` and the like; a token that is not known stays as it is."""
    parts = iter(text)
    out: list[str] = []
    for character in parts:
        if character != "%":
            out.append(character)
            continue
        token = next(parts, "")
        out.append(tokens.get(token, f"%{token}"))
    return "".join(out)


def unreachable(route: Route, problem: str, hint: str | None = None) -> UnreachableError:
    """The one form of connection errors: who, and what is wrong."""
    return UnreachableError(f"cannot reach {route.label}: {problem}", hint)
