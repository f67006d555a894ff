"""What no single value shows: things that contradict each other, or name what is not there."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from glm5_deploy.config.errors import ConfigErrors, ConfigProblem, shown_file
from glm5_deploy.config.golden import read_golden
from glm5_deploy.config.locks import lock_path
from glm5_deploy.config.merge import group_order, groups_of, members, settings_of
from glm5_deploy.config.models import Target, option_name
from glm5_deploy.config.node import Node
from glm5_deploy.config.templates import is_template
from glm5_deploy.errors import UsageError

DEFAULT_ROOT = "/opt/glm5"

_OWN_ARGUMENTS = {
    "host": "serve.host",
    "port": "serve.port",
    "model": "model.serve",
    "served-model-name": "model.served_name",
    "api-key": "secrets.VLLM_API_KEY",
}
"""Arguments of the server that the program sets itself, with the profile key for each."""

_PLACES = ("{venv}", "{model}", "{python}")
"""What `engine.command` may hold in place of a path on the host."""

_SECRET_WORDS = ("TOKEN", "PASSWORD", "PASSPHRASE", "SECRET", "API_KEY", "ACCESS_KEY")


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """A hint: the nearest known name, or all of them where none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"{what}: {', '.join(names)}" if names else f"{what}: none"


# --- the inventory -------------------------------------------------------------------------------


def inventory_problems(document: Node) -> list[ConfigProblem]:
    """Groups that name what is not there or hold each other, and hosts that share a folder."""
    groups, hosts = document.below("groups"), document.below("hosts")
    problems = [*_unknown_members(groups, hosts), *_both_host_and_group(groups, hosts)]
    try:
        order = group_order(groups)
    except ConfigErrors as error:
        return [*problems, *error.problems]
    return [*problems, *_same_place(document, hosts, groups, order)]


def _unknown_members(
    groups: Mapping[str, Node], hosts: Mapping[str, Node]
) -> Iterator[ConfigProblem]:
    for group in groups.values():
        for kind, known in (("hosts", hosts), ("groups", groups)):
            for node in members(group, kind):
                name = node.text or ""
                if name not in known and not any(sign in name for sign in "*?["):
                    hint = nearest(name, known, f"declared {kind}")
                    yield node.problem(f"no {kind[:-1]} is called `{name}`", hint)


def _both_host_and_group(
    groups: Mapping[str, Node], hosts: Mapping[str, Node]
) -> Iterator[ConfigProblem]:
    for name in groups:
        if name in hosts:
            yield groups[name].problem(f"`{name}` is a host and a group", at_key=True)


def _same_place(
    document: Node, hosts: Mapping[str, Node], groups: Mapping[str, Node], order: list[str]
) -> Iterator[ConfigProblem]:
    seen: dict[tuple[str, ...], str] = {}
    for name, node in hosts.items():
        settings = settings_of(document, name, groups_of(name, groups, order))
        key = (
            (_value(settings, "connection", "address") or name).lower(),
            _value(settings, "connection", "port") or "22",
            _value(settings, "connection", "proxy_jump") or "",
            (_value(settings, "root") or DEFAULT_ROOT).rstrip("/"),
        )
        first = seen.setdefault(key, name)
        if first != name:
            yield node.problem(
                f"the same machine and root as `{first}` ({key[0]}:{key[1]} {key[3]})",
                "two entries would fight over one lock: remove one, or give it another `root`",
                at_key=True,
            )


def _value(node: Node, *path: str) -> str | None:
    found = node.at(*path)
    return None if found is None or found.value is None else str(found.value)


def same_unit_problems(targets: Sequence[tuple[Target, Node]]) -> list[ConfigProblem]:
    """Two entries for one machine, with a root each, must not write the same unit.

    Args:
        targets: each with its host's entry in the inventory.
    """
    seen: dict[tuple[object, ...], str] = {}
    problems = []
    for target, entry in targets:
        connection, unit = target.settings.connection, target.profile.unit_name
        address = (connection.address or target.name).lower()
        key = (address, connection.port or 22, connection.proxy_jump, unit)
        first = seen.setdefault(key, target.name)
        if first != target.name:
            message = f"the same machine as `{first}`, and both would write {unit}"
            hint = "give one of them `override: {service: NAME}`"
            problems.append(entry.problem(message, hint, at_key=True))
    return problems


# --- a host's settings ---------------------------------------------------------------------------


def settings_problems(settings: Node) -> list[ConfigProblem]:
    """Contradictions in what a host's levels come to together."""
    index = settings.at("index_url")
    if index is None or not index.text:
        return []
    return [*_two_sources(settings, index), *_credentials(index)]


def _two_sources(settings: Node, index: Node) -> Iterator[ConfigProblem]:
    wheelhouse = settings.at("wheelhouse")
    if wheelhouse is not None and wheelhouse.text:
        place = f"{shown_file(wheelhouse.file)}:{wheelhouse.key_line}"
        message = f"`wheelhouse` is set too ({place}), beside which no index is used"
        hint = "keep one of them; null removes one that `defaults` or a group brings"
        yield index.problem(message, hint, at_key=True)


def _credentials(index: Node) -> Iterator[ConfigProblem]:
    """They would be in the list of processes while packages are installed."""
    if re.search(r"://[^/]*@", index.text or ""):
        hint = "on the host, uv reads root's ~/.netrc (machine … login … password …)"
        yield index.problem("an index's credentials do not belong here", hint, at_key=True)


# --- a profile -----------------------------------------------------------------------------------


def profile_problems(profile: Node) -> list[ConfigProblem]:
    """Contradictions in a profile, before or after its templates are rendered."""
    return [
        *_own_arguments(profile),
        *_same_arguments(profile),
        *_command(profile),
        *_variables(profile),
        *_delivery(profile),
    ]


def _own_arguments(profile: Node) -> Iterator[ConfigProblem]:
    arguments = profile.at("serve", "args")
    for key, node in ({} if arguments is None else arguments.mapping).items():
        plain = option_name(key.lstrip("-"))
        if plain in _OWN_ARGUMENTS:
            yield node.problem(f"set this as `{_OWN_ARGUMENTS[plain]}`", at_key=True)
        elif (
            key.startswith("-")
            or not key.replace("-", "").replace("_", "").replace(".", "").isalnum()
        ):
            yield node.problem(
                "an argument's name holds letters, digits, `-`, `_`, `.`, and no dashes in front",
                f"write `{key.lstrip('-')}`" if key.startswith("-") else None,
                at_key=True,
            )
        elif "" in key.split("."):
            yield node.problem(
                "a dot stands between two names", "such as hf-overrides.index_topk", at_key=True
            )


def _same_arguments(profile: Node) -> Iterator[ConfigProblem]:
    arguments = profile.at("serve", "args")
    seen: dict[str, str] = {}
    for key, node in ({} if arguments is None else arguments.mapping).items():
        first = seen.setdefault(option_name(key), key)
        if first != key:
            yield node.problem(f"the same argument as `{first}`", "keep one of them", at_key=True)


def _command(profile: Node) -> Iterator[ConfigProblem]:
    command = profile.at("engine", "command")
    words = [] if command is None else command.items
    # What a template comes to is judged when it is rendered.
    plain = [node for node in words if node.text is not None and not is_template(node.text)]
    for node in plain:
        for place in re.findall(r"\{\w+\}", node.text or ""):
            if place not in _PLACES:
                yield node.problem(f"nothing is called {place}", nearest(place, _PLACES, "known"))
    if plain and plain[0] is words[0] and not (plain[0].text or "").startswith(("/", "{")):
        yield words[0].problem(
            f"the program must be an absolute path on the host, found `{words[0].text}`",
            "systemd searches no PATH; write such as {venv}/bin/vllm or /opt/vllm/bin/vllm",
        )


def _variables(profile: Node) -> Iterator[ConfigProblem]:
    environment = profile.below("environment")
    for name, node in profile.below("secrets").items():
        if name in environment:
            yield node.problem("this variable is in `environment` too", at_key=True)
    if "VLLM_API_KEY" in environment:
        yield environment["VLLM_API_KEY"].problem(
            "a key belongs in `secrets.VLLM_API_KEY`",
            "write ${env:NAME}, ${file:path} or ${exec:command} there",
            at_key=True,
        )


_DELIVERIES = ("source", "source_host", "fetch")
_BELONGS = {
    "source_path": "source_host",
    "source_address": "source_host",
    "fetch_environment": "fetch",
    "fetch_secrets": "fetch",
}


def _delivery(profile: Node) -> Iterator[ConfigProblem]:
    """A model comes from one place, and keys of another way would be passed over in silence."""
    given = {key: node for key, node in profile.below("model").items() if node.value is not None}
    ways = [key for key in _DELIVERIES if key in given]
    for key in ways[1:]:
        hint = f"keep one of {', '.join(ways)}; null removes one that a profile brings"
        yield given[key].problem(f"the model comes from `{ways[0]}` already", hint, at_key=True)
    for key, owner in _BELONGS.items():
        if key in given and owner not in given:
            message = f"it belongs to `model.{owner}`, which is not set"
            yield given[key].problem(message, at_key=True)
    yield from _fetch(given.get("fetch"), profile)


def _fetch(fetch: Node | None, profile: Node) -> Iterator[ConfigProblem]:
    words = [] if fetch is None else [node for node in fetch.items if node.text is not None]
    engines = (profile.at("engine", "lock"), profile.at("engine", "base"))
    has_venv = any(node is not None and node.value is not None for node in engines)
    for node in words:
        for place in re.findall(r"\{\w+\}", node.text or ""):
            if place not in {"{folder}", "{venv}"}:
                yield node.problem(f"nothing is called {place}", "known: {folder}, {venv}")
            elif place == "{venv}" and not has_venv:
                yield node.problem("there is no {venv} without `engine.lock` or `engine.base`")
    if (
        words
        and not is_template(words[0].text or "")
        and not (words[0].text or "").startswith(("/", "{"))
    ):
        hint = "write such as {venv}/bin/hf or /usr/local/bin/hf"
        yield words[0].problem("the program must be an absolute path on the host", hint)


def engine_problems(profile: Node) -> list[ConfigProblem]:
    """What a complete profile lacks for its engine; before that, `override` may still give it."""
    return [*_without_lock(profile), *_two_engines(profile), *_devices(profile)]


def _two_engines(profile: Node) -> Iterator[ConfigProblem]:
    base, lock = profile.at("engine", "base"), profile.at("engine", "lock")
    if base is not None and base.value is not None and lock is not None and lock.value is not None:
        hint = "remove engine.base, or set engine.lock: null to use the host's own vLLM"
        yield base.problem("`engine.base` and `engine.lock` exclude each other", hint, at_key=True)


def _without_lock(profile: Node) -> Iterator[ConfigProblem]:
    lock, kernel = profile.at("engine", "lock"), profile.at("engine", "kernel")
    base = profile.at("engine", "base")
    if any(node is not None and node.value is not None for node in (lock, base)):
        return
    command = profile.at("engine", "command")
    words = ["{venv}"] if command is None else [node.text or "" for node in command.items]
    if any("{venv}" in word for word in words):
        holder = command or profile.at("engine") or profile
        yield holder.problem(
            "`engine.command` uses {venv}: it needs `engine.lock` or `engine.base`",
            "name a lock, or give the path of a vLLM that is on the host",
        )
    if kernel is not None and kernel.value is True:
        yield kernel.problem(
            "glm5-kernel is installed into a venv: it needs `engine.lock` or `engine.base`"
        )


def _devices(profile: Node) -> Iterator[ConfigProblem]:
    count, devices = profile.at("gpus", "count"), profile.at("gpus", "devices")
    if devices is None or not devices.items or count is None:
        return
    values = [node.value for node in devices.items]
    for index, node in enumerate(devices.items):
        if isinstance(node.value, int) and node.value < 0:
            yield node.problem("GPUs are counted from 0")
        elif node.value in values[:index]:
            yield node.problem(f"GPU {node.value} is named twice")
    if len(devices.items) != count.value:
        yield devices.problem(f"{len(devices.items)} devices, but `gpus.count` is {count.value}")


def profile_warnings(profile: Node) -> list[ConfigProblem]:
    """What is allowed, and seldom meant."""
    return [*_open_address(profile), *_looks_secret(profile), *_own_visible(profile)]


def _open_address(profile: Node) -> Iterator[ConfigProblem]:
    node = profile.at("serve", "host")
    if node is None or node.text is None:
        return
    try:
        address = ipaddress.ip_address(node.text)
    except ValueError:
        return
    if address.is_unspecified or address.is_global:
        key = profile.below("secrets").get("VLLM_API_KEY")
        guard = "" if key is not None else " and no `secrets.VLLM_API_KEY` is set"
        yield node.problem(
            f"{node.text} listens beyond this machine and a private network{guard}",
            "/health, /metrics and /version need no key: bind to loopback or a private address",
        )


def _looks_secret(profile: Node) -> Iterator[ConfigProblem]:
    for name, node in profile.below("environment").items():
        if name != "VLLM_API_KEY" and any(word in name.upper() for word in _SECRET_WORDS):
            yield node.problem(
                "looks like a secret, and `environment` is shown",
                "move it to `secrets`",
                at_key=True,
            )


def _own_visible(profile: Node) -> Iterator[ConfigProblem]:
    """What is looked at before a start, and judged after it, are the GPUs of `gpus`."""
    count, own = profile.at("gpus", "count"), profile.below("environment")
    if count is not None and count.value and "CUDA_VISIBLE_DEVICES" in own:
        yield own["CUDA_VISIBLE_DEVICES"].problem(
            "other GPUs may be checked before a start and after it than are used",
            "set gpus.devices instead, such as gpus: {count: 2, devices: [4, 5]}",
            at_key=True,
        )


# --- files ---------------------------------------------------------------------------------------


def file_problems(settings: Node, profile: Node) -> list[ConfigProblem]:
    """Local files and folders that are named and not there; paths are absolute by now."""
    folders = (
        *_named(settings, ("python_tree",), ("wheelhouse",)),
        *_named(profile, ("model", "source")),
    )
    files = (
        *_named(settings, ("connection", "identity_file"), ("connection", "ssh_config")),
        *_named(profile, ("model", "manifest")),
        *_named(profile, ("smoke", "golden")),
    )
    return [
        *(_not_there(node, "folder") for node in folders if not Path(node.text or "").is_dir()),
        *(_not_there(node, "file") for node in files if not Path(node.text or "").is_file()),
        *_golden(profile),
        *_lock(profile),
    ]


def _golden(profile: Node) -> Iterator[ConfigProblem]:
    """Golden tokens that cannot be read, else found out only after the model has loaded."""
    node = profile.at("smoke", "golden")
    if node is None or not node.text or not Path(node.text).is_file():
        return
    try:
        read_golden(Path(node.text))
    except UsageError as error:
        yield node.problem(error.message, error.hint)


def _not_there(node: Node, kind: str) -> ConfigProblem:
    return node.problem(f"no such {kind}: {shown_file(Path(node.text or ''))}")


def _named(node: Node, *paths: tuple[str, ...]) -> list[Node]:
    found = (node.at(*path) for path in paths)
    return [node for node in found if node is not None and node.text]


def _lock(profile: Node) -> Iterator[ConfigProblem]:
    node = profile.at("engine", "lock")
    if node is None or not node.text:
        return
    try:
        lock_path(node.text, node.file.parent)
    except UsageError as error:
        yield node.problem(error.message, error.hint)
