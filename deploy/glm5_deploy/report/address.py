"""Where a deployed server is reached, as a command that can be pasted."""

from __future__ import annotations

import json
import shlex

from glm5_deploy.config.address import bracketed, dial_address
from glm5_deploy.config.models import Target

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
"""Reached through a tunnel; so is what listens everywhere, which is dialled there."""

_TUNNEL_SECONDS = 30


def ssh_words(target: Target, *options: str) -> list[str]:
    """The ssh command that reaches the host with the inventory's settings."""
    connection = target.settings.connection
    words = ["ssh", *options]
    if connection.ssh_config is not None:
        words += ["-F", str(connection.ssh_config)]
    if connection.known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={connection.known_hosts}"]
    if connection.identity_file is not None:
        words += ["-i", str(connection.identity_file)]
    if connection.proxy_jump is not None:
        words += ["-J", connection.proxy_jump]
    if connection.port is not None:
        words += ["-p", str(connection.port)]
    address = connection.address or target.name
    return [*words, f"{connection.user}@{address}" if connection.user else address]


def usage_lines(target: Target) -> list[str]:
    """The URL on the host, and a line for a shell here that asks the server something.

    A server on loopback is reached through a tunnel that closes by itself, and that keeps no
    pipe of the shell open meanwhile. A key travels on
    curl's standard input, so that no process list shows it.
    """
    serve, name = target.profile.serve, target.profile.served_model_name
    url = f"http://{bracketed(dial_address(serve.host))}:{serve.port}/v1"
    return [f"{target.name}: {url} (model {name})", f"  {_tunnel(target)}{_question(target)}"]


def _tunnel(target: Target) -> str:
    serve = target.profile.serve
    if dial_address(serve.host) not in _LOOPBACK:
        return ""
    inside = bracketed(dial_address(serve.host))
    forward = f"127.0.0.1:{serve.port}:{inside}:{serve.port}"
    words = ssh_words(target, "-f", "-o", "ExitOnForwardFailure=yes", "-L", forward)
    return f"{shlex.join([*words, 'sleep', str(_TUNNEL_SECONDS)])} >/dev/null && "


def _question(target: Target) -> str:
    serve, name = target.profile.serve, target.profile.served_model_name
    there = dial_address(serve.host)
    address = "127.0.0.1" if there in _LOOPBACK else bracketed(there)
    url = f"http://{address}:{serve.port}/v1/completions"
    body = json.dumps({"model": name, "prompt": "Hello", "max_tokens": 16})
    curl = ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", body]
    reference = target.profile.secrets.get("VLLM_API_KEY")
    if reference is None:
        return shlex.join(curl)
    key = shell_value(reference)
    return f'printf "Authorization: Bearer %s" "{key}" | {shlex.join([*curl, "-H", "@-"])}'


def shell_value(reference: str) -> str:
    """A secret reference as a shell's expansion, for use between double quotes."""
    kind, _, value = reference.removeprefix("${").removesuffix("}").partition(":")
    if kind == "env":
        return f"${value}"
    return f"$(cat {shlex.quote(value)})" if kind == "file" else f"$({value})"
