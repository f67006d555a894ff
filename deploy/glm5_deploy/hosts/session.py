"""An authenticated SSH connection with the host key verified: `open_session`.

Built on paramiko's `Transport`, not on Fabric's `Connection`: of the latter nothing would be left.
It accepts contradicting host keys, dials jumps in the wrong order, has no keepalive or channel
timeout, misreads parts of ssh_config and reads ``fabric.yml`` files of its own; its `run` and
`sudo` build shell strings and lose Ctrl-C. What it does well besides (jump channels, key files,
agent) is a few calls of paramiko.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import functools
import itertools
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.ssh_exception import IncompatiblePeer
from paramiko.transport import ServiceRequestingTransport

from glm5_deploy.errors import Glm5Error, UnreachableError
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.known_hosts import (
    Entry,
    ServerKey,
    judge,
    load,
    lookup_names,
    preferred_algorithms,
)
from glm5_deploy.hosts.ssh_client import SILENT_KEEPALIVES
from glm5_deploy.hosts.ssh_config import Route, unreachable

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Tried first: one pass over the data instead of two."""

# paramiko logs tracebacks of broken connections; a failure reaches the user as an exception instead
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


Stream = socket.socket | paramiko.Channel
"""What a connection runs over: the network, a proxy command's socket, or a jump host's channel."""


class NotRetriedError(UnreachableError):
    """Trying again would change nothing: a host key, an authentication, an unknown name."""


class _Packets(paramiko.packet.Packetizer):
    """Notes when something last came in: the proof that the link lives."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(stream)
        self.last_read = time.monotonic()
        self.offer: dict[str, list[str]] = {}

    def read_message(self) -> tuple[int, paramiko.Message]:
        kind, message = super().read_message()
        self.last_read = time.monotonic()
        if kind == MSG_KEXINIT:
            self.offer = offer(message.asbytes())
        return kind, message


@dataclass
class Session:
    """A live connection, its hops, and the watch over it.

    Args:
        transport: authenticated.
        keepalive: seconds between keepalives; three without any answer mean that the link is dead.
        close_hops: closes what the connection runs through.
    """

    transport: paramiko.Transport
    keepalive: float
    close_hops: Callable[[], None]
    _watch: threading.Thread | None = field(default=None, repr=False)

    @property
    def alive(self) -> bool:
        return self.transport.is_active() and not self.silent

    def ends_within(self, seconds: float) -> bool:
        """Whether it is over, or will be: of a connection that broke, paramiko closes the channels
        first and says only then that it has ended.
        """
        if self.alive:
            self.transport.join(seconds)
        return not self.alive

    @property
    def silent(self) -> bool:
        """Keepalives were sent and nothing came back for too long."""
        if self._watch is None:
            return False
        return time.monotonic() - self._last_read() > self.keepalive * SILENT_KEEPALIVES

    def _last_read(self) -> float:
        packets = self.transport.packetizer
        return packets.last_read if isinstance(packets, _Packets) else time.monotonic()

    def watch(self) -> None:
        """Ask the server for answers from now on. Called when a command is silent for a while: most
        need no watch.
        """
        if self._watch is None:
            self._watch = threading.Thread(target=self._ask, daemon=True, name="ssh-keepalive")
            self._watch.start()

    def _ask(self) -> None:
        transport = self.transport
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            while transport.is_active():
                # paramiko's own keepalive wants no answer and so cannot notice a dead link
                transport.global_request("keepalive@openssh.com", wait=True)
                time.sleep(self.keepalive)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.transport.close()
        self.close_hops()


def _keep_none(close: Callable[[], None]) -> None:
    """For a login that nobody else ends."""


@dataclass(frozen=True)
class Login:
    """What `open_session` needs beside the route.

    Args:
        passphrase: gives the passphrase of encrypted key files, when one is met.
        keepalive: seconds.
        register: called with each resource as soon as it can be closed, so that another thread can
            end the attempt.
    """

    keepalive: float
    passphrase: Callable[[], Secret] | None = None
    register: Callable[[Callable[[], None]], None] = _keep_none


def open_session(route: Route, login: Login) -> Session:
    """Dial (through jumps or a proxy command), verify the host key, authenticate.

    Raises:
        NotRetriedError: host key, authentication, unknown name.
        UnreachableError: network trouble that may pass.
    """
    closers: list[Callable[[], None]] = []

    def remember(close: Callable[[], None]) -> None:
        closers.append(close)
        login.register(close)

    def close_hops() -> None:
        for close in reversed(closers):
            with contextlib.suppress(Exception):
                close()

    try:
        stream: Stream | None = None
        for hop, following in itertools.pairwise((*route.jumps, route)):
            before = _connect(hop, login, stream, remember)
            stream = _through(before, hop, following)
        transport = _connect(route, login, stream, remember)
    except BaseException:
        close_hops()
        raise
    return Session(transport, login.keepalive, close_hops)


def _through(jump: paramiko.Transport, hop: Route, target: Route) -> paramiko.Channel:
    try:
        return jump.open_channel(
            "direct-tcpip",
            (target.address, target.port),
            ("127.0.0.1", 0),
            timeout=target.connect_timeout,
        )
    except paramiko.ChannelException as error:
        hint = "AllowTcpForwarding is off there" if error.code == 1 else None
        raise unreachable(target, f"the jump host {hop.label} says: {error.text}", hint) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise unreachable(target, f"no answer through the jump host {hop.label}") from error


def _connect(
    route: Route,
    login: Login,
    stream: Stream | None,
    remember: Callable[[Callable[[], None]], None],
) -> paramiko.Transport:
    stream = stream or _dial(route, remember)
    remember(stream.close)
    tune(stream, login.keepalive)
    transport = ServiceRequestingTransport(stream, packetizer_class=_Packets)
    transport.daemon = True
    remember(transport.close)
    transport.banner_timeout = transport.auth_timeout = max(15.0, route.connect_timeout)
    transport.set_keepalive(int(login.keepalive))
    entries = load((*route.system_known_hosts, *route.known_hosts))
    _negotiate(transport, route, entries)
    _verify(transport, route, entries)
    authenticate(transport, route, login)
    return transport


def tune(stream: Stream, keepalive: float) -> None:
    """No delay for small packets, and a kernel that gives up on unanswered data after three
    keepalives.
    """
    if not isinstance(stream, socket.socket) or stream.family == socket.AF_UNIX:
        return
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    user_timeout = getattr(socket, "TCP_USER_TIMEOUT", None)
    if user_timeout is not None:
        milliseconds = int(keepalive * SILENT_KEEPALIVES * 1000)
        stream.setsockopt(socket.IPPROTO_TCP, user_timeout, milliseconds)


def _dial(route: Route, remember: Callable[[Callable[[], None]], None]) -> socket.socket:
    if route.proxy_command is not None:
        return _proxy(route.proxy_command)
    try:
        stream = _first_answer(route, remember)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise unreachable(route, "the name server does not answer") from error
        raise NotRetriedError(
            f"cannot reach {route.label}: no such host name",
            "check the address, or give one with HostName in the ssh_config",
        ) from error
    except ConnectionRefusedError as error:
        raise unreachable(
            route, "connection refused", "is sshd running there, and on this port?"
        ) from error
    except TimeoutError as error:
        raise unreachable(
            route,
            f"no answer within {route.connect_timeout:g} s",
            "is the machine up, and does a firewall let port "
            f"{route.port} through? (connection.connect_timeout sets the limit)",
        ) from error
    except OSError as error:
        no_way = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
        hint = (
            "is the machine up, and the address right? connection.proxy_jump leads into networks"
            " that this machine does not reach"
        )
        raise unreachable(route, error.strerror or str(error), hint if no_way else None) from error
    stream.settimeout(None)
    return stream


def _first_answer(route: Route, remember: Callable[[Callable[[], None]], None]) -> socket.socket:
    """Dial the host's addresses one after the other; another thread can end each attempt."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        route.address, route.port, type=socket.SOCK_STREAM
    ):
        stream = socket.socket(family, kind, protocol)
        stream.settimeout(route.connect_timeout)
        # a close alone would not wake the thread that waits for the answer
        remember(functools.partial(stream.shutdown, socket.SHUT_RDWR))
        try:
            stream.connect(address)
        except OSError as error:
            stream.close()
            failure = error
        else:
            return stream
    raise failure or OSError("it has no address")


def _proxy(command: str) -> socket.socket:
    """Run the proxy command as OpenSSH does, by the user's shell, on a socket pair (paramiko's own
    spins when it ends).
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )

    class _ProxySocket(socket.socket):
        def close(self) -> None:
            super().close()
            if process.poll() is None:
                process.terminate()
                threading.Thread(target=process.wait, daemon=True).start()

    return _ProxySocket(fileno=ours.detach())


def _negotiate(transport: paramiko.Transport, route: Route, entries: list[Entry]) -> None:
    options = transport.get_security_options()
    names = lookup_names(route.host_key_name)
    options.key_types = preferred_algorithms(entries, names, tuple(options.key_types))
    options.ciphers = [*CIPHERS, *(name for name in options.ciphers if name not in CIPHERS)]
    try:
        transport.start_client(timeout=max(15.0, route.connect_timeout))
    except IncompatiblePeer as error:
        raise _incompatible(transport, route, str(error)) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        text = str(error)
        if isinstance(error, TimeoutError) or "timeout" in text.lower():
            problem = "it accepts connections, but no SSH server answers in time"
        else:
            problem = f"no SSH session: {text or 'the connection was closed at once'}"
        if route.proxy_command is not None:
            problem += f" (through the proxy command: {route.proxy_command})"
        raise unreachable(route, problem) from error


def _incompatible(transport: paramiko.Transport, route: Route, said: str) -> NotRetriedError:
    """Name what has nothing in common, and what either side has."""
    options = transport.get_security_options()
    ours = {
        "key exchange": options.kex,
        "host key": options.key_types,
        "cipher": options.ciphers,
        "MAC": options.digests,
    }
    what = next((name for word, name in LACKING.items() if word in said), "key exchange")
    packets = transport.packetizer
    theirs = packets.offer.get(what, []) if isinstance(packets, _Packets) else []
    old = bool(theirs) and all(name in BROKEN for name in theirs)
    return NotRetriedError(
        f"cannot reach {route.label}: no common {what} algorithm: "
        f"it offers only {', '.join(theirs) or 'nothing'}",
        ("these rest on SHA-1 and are broken by now; " if old else "")
        + f"enable one of these there: {', '.join(ours[what])}",
    )


MSG_KEXINIT = 20
LACKING = {"kex": "key exchange", "host key": "host key", "cipher": "cipher", "mac": "MAC"}
"""Word in paramiko's message → what is meant."""

BROKEN = frozenset(
    {
        "diffie-hellman-group1-sha1",
        "diffie-hellman-group14-sha1",
        "diffie-hellman-group-exchange-sha1",
        "ssh-rsa",
        "ssh-dss",
    }
)


def offer(message: bytes) -> dict[str, list[str]]:
    """The algorithms in a server's KEXINIT (RFC 4253, 7.1), without its message number.

    What is no algorithm (``ext-info-s``, ``kex-strict-…``) is left out.
    """
    reader = paramiko.Message(message)
    reader.get_bytes(16)
    names = ("key exchange", "host key", "", "cipher", "", "MAC")
    lists = {name: reader.get_list() for name in names}
    lists.pop("")
    lists["key exchange"] = [
        name for name in lists["key exchange"] if not name.startswith(("ext-info-", "kex-strict-"))
    ]
    return lists


def _verify(transport: paramiko.Transport, route: Route, entries: list[Entry]) -> None:
    key = transport.get_remote_server_key()
    server = ServerKey(key.get_name(), key.asbytes())
    file = next(iter(route.known_hosts), Path.home() / ".ssh" / "known_hosts")
    try:
        judge(entries, route.host_key_name, server, file, label=route.label)
    except UnreachableError as error:
        raise NotRetriedError(error.message, error.hint) from None


class _Agent(AgentSSH):
    """An agent at a socket of our choice: paramiko's own reads the process's environment alone."""

    def __init__(self, path: str) -> None:
        super().__init__()
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(10)
            stream.connect(path)
            self._connect(stream)  # type: ignore[attr-defined]
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


@dataclass
class _Tried:
    """What was tried, for the message when nothing worked."""

    notes: list[str] = field(default_factory=list)
    hint: str | None = None

    def note(self, what: str, why: str) -> None:
        self.notes.append(f"{what}: {why}")


def authenticate(transport: paramiko.Transport, route: Route, login: Login) -> None:
    """Try keys until one is accepted: configured files (by the agent where it holds them), then the
    agent's other keys.

    Raises:
        NotRetriedError: none was accepted; the message lists all that was tried.
    """
    tried = _Tried()
    with contextlib.ExitStack() as stack:
        for what, key in _candidates(route, login, tried, stack):
            try:
                if not transport.auth_publickey(route.user, key):
                    return
                tried.note(
                    what, "accepted, but the server wants a second factor, which is not supported"
                )
            except paramiko.BadAuthenticationType as error:
                allowed = ", ".join(error.allowed_types)
                raise NotRetriedError(
                    f"cannot log in as {route.label}: the server takes no keys, only: {allowed}",
                    "allow PubkeyAuthentication there and install your key (ssh-copy-id)",
                ) from error
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    # paramiko's word for no answer at all: nothing was refused.
                    busy = "is the machine overloaded? then run it again"
                    raise unreachable(route, f"no answer to the login with {what}", busy) from error
                if not transport.is_active():
                    tried.note(what, "then the server closed the connection (too many keys tried)")
                    tried.hint = (
                        "name the right key: connection.identity_file, "
                        "or IdentitiesOnly in the ssh_config"
                    )
                    break
                tried.note(what, _why(error))
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not transport.is_active():
                    raise unreachable(route, "the connection broke while logging in") from error
                tried.note(what, str(error) or type(error).__name__)
    raise _refused(route, tried)


def _why(error: paramiko.AuthenticationException) -> str:
    text = str(error)
    return "not accepted" if not text or "failed" in text.lower() else text


def _refused(route: Route, tried: _Tried) -> NotRetriedError:
    listing = "; ".join(tried.notes) or "nothing: there is no agent and no key file"
    hint = tried.hint or f"install a key there: ssh-copy-id {route.user}@{route.address}"
    return NotRetriedError(f"cannot log in as {route.label}. Tried {listing}", hint)


def _candidates(
    route: Route, login: Login, tried: _Tried, stack: contextlib.ExitStack
) -> Iterator[tuple[str, paramiko.PKey]]:
    held = _agent_keys(route, tried, stack)
    for path in route.identity_files:
        blob = _public_blob(path)
        if blob in held:
            yield f"{path} (agent)", held.pop(blob)
            continue
        if path == route.own_identity and not path.exists():
            tried.note(str(path), "does not exist")
        key = _load(path, login, tried)
        if key is None:
            continue
        yield str(path), key
    if not route.identities_only:
        for key in held.values():
            yield f"agent key {key.comment or key.get_name()}", key


def _agent_keys(
    route: Route, tried: _Tried, stack: contextlib.ExitStack
) -> dict[bytes, paramiko.AgentKey]:
    if route.identity_agent is None:
        return {}
    try:
        agent = _Agent(route.identity_agent)
    except (OSError, paramiko.SSHException):
        tried.note(f"agent {route.identity_agent}", "does not answer")
        return {}
    stack.callback(agent.close)
    return {key.asbytes(): key for key in agent.get_keys()}


def _public_blob(path: Path) -> bytes:
    """The public half that lies beside a private key, or nothing."""
    public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        words = public.read_text(errors="replace").split()
        return base64.b64decode(words[1])
    except (OSError, IndexError, binascii.Error):
        return b""


def _load(path: Path, login: Login, tried: _Tried) -> paramiko.PKey | None:
    """The private key in a file; None, and a note, where it cannot be used."""
    if path.suffix == ".pub" or not path.exists():
        return None
    try:
        key = _read_key(path, login)
    except paramiko.PasswordRequiredException:
        tried.note(str(path), "is encrypted and there is no passphrase for it")
        tried.hint = (
            "set connection.identity_passphrase to a reference, "
            "or add the key to your agent (ssh-add)"
        )
    except Glm5Error as error:
        tried.note(str(path), f"its passphrase is not to be had: {error.message}")
        tried.hint = error.hint
    except PermissionError:
        tried.note(str(path), "is not readable")
    except (paramiko.SSHException, ValueError, TypeError, OSError) as error:
        tried.note(str(path), str(error) or "cannot be read")
    else:
        return key
    return None


def _read_key(path: Path, login: Login) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        if login.passphrase is None:
            raise paramiko.PasswordRequiredException(str(path)) from None
    secret = login.passphrase().value
    try:
        return paramiko.PKey.from_path(path, secret.encode())  # type: ignore[arg-type]
    except Exception:
        # what the library says may quote the passphrase's effect; say only what matters
        raise paramiko.SSHException("the passphrase does not open it") from None
