"""Where a deployed server is reached, as commands that can be pasted."""

from __future__ import annotations

import json
import shlex

from glm5_deploy.config.models import Target

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def ssh_words(target: Target) -> list[str]:
    """The ssh command that reaches the host with the inventory's settings."""
    connection = target.settings.connection
    words = ["ssh"]
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
    """The URL on the host and a curl line that works on this machine.

    A server on loopback is asked through SSH; the key is read on the host, where it lies in a root-
    only file.
    """
    serve, profile = target.profile.serve, target.profile
    url = f"http://{_bracketed(_reachable(serve.host))}:{serve.port}/v1"
    body = json.dumps({"model": profile.served_model_name, "prompt": "Hello", "max_tokens": 16})
    curl = ["curl", "-sS", f"{url}/completions", "-H", "Content-Type: application/json", "-d", body]
    if "VLLM_API_KEY" in profile.secrets:
        # Standard input carries the header, so that the key shows in no process list.
        curl = ["curl", "-sS", "-H", "@-", *curl[2:]]
    where = f"{target.name}: {url} (model {profile.served_model_name})"
    return [where, f"  {_invocation(target, curl)}"]


def _invocation(target: Target, curl: list[str]) -> str:
    command = shlex.join(curl)
    if "VLLM_API_KEY" in target.profile.secrets:
        command = f'printf "Authorization: Bearer %s" "$VLLM_API_KEY" | {command}'
    if target.profile.serve.host not in _LOOPBACK:
        return command
    if "VLLM_API_KEY" in target.profile.secrets:
        head, _, tail = command.partition(" | ")
        return f"{head} | {shlex.join([*ssh_words(target), tail])}"
    return shlex.join([*ssh_words(target), command])


def _reachable(bind: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
