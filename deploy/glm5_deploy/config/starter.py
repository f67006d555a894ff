"""The first inventory: commented, and valid as it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glm5_deploy.config import emit
from glm5_deploy.config.address import Address, parse_address
from glm5_deploy.config.errors import ConfigErrors, shown_path
from glm5_deploy.config.node import Node, Scalar
from glm5_deploy.config.templates import is_template
from glm5_deploy.config.yaml import parse
from glm5_deploy.errors import UsageError

_REQUIRED = re.compile(r"\bvars\.([A-Za-z_]\w*)\b(?!\s*\|\s*default\b)")

_HEAD = """\
# Hosts, and what they serve.
#   glm5-deploy inventory check            is it right?
#   glm5-deploy inventory show --origin    what holds for each host, and where it was written
#   glm5-deploy up --check --diff          what `up` would do
#   glm5-deploy inventory schema --help    for an editor that completes and checks this file

# What holds for every host; a group's settings win over it, and a host's own win over both.
defaults:
"""

_HINTS = """\
  # connection:
  #   identity_file: ~/.ssh/id_ed25519   # what is left out comes from your ~/.ssh/config
  #   proxy_jump: me@jump.example.org
  # become:
  #   password: ${env:SUDO_PASSWORD}     # where sudo asks for one; also ${file:…}, ${exec:…}
  # wheelhouse: wheels/                  # wheels here, for hosts without a package index
"""

_GROUPS = """\

# Hosts that share settings. A group may hold other groups.
groups:
  # blackwell:
  #   hosts: [bw1, bw2]
  #   profile: my-model

"""

_EXAMPLE_HOST = """\
  # bw1:
  #   connection: {address: 192.0.2.1, user: root}
  #   override:                          # changes to the profile for this host alone
  #     serve: {port: 8001}
"""


@dataclass(frozen=True)
class Starter:
    """What a first inventory says."""

    hosts: Mapping[str, Address] = field(default_factory=dict)
    profile: str | None = None
    root: str = "/opt/glm5"
    variables: Mapping[str, Scalar] = field(default_factory=dict)


def inventory_text(starter: Starter) -> str:
    """The file's text; every value in it is quoted where it must be."""
    lines = [f"  root: {emit.text(starter.root)}"]
    if starter.profile is not None:
        lines.append(f"  profile: {emit.text(starter.profile)}")
    if starter.variables:
        lines.append("  vars:")
        lines += [f"    {emit.text(k)}: {emit.flow(v)}" for k, v in starter.variables.items()]
    hosts = [line for name, place in starter.hosts.items() for line in _host_lines(name, place)]
    return (
        _HEAD
        + "\n".join(lines)
        + "\n"
        + _HINTS
        + _GROUPS
        + "hosts:\n"
        + "".join(f"{line}\n" for line in hosts)
        + _EXAMPLE_HOST
    )


def _host_lines(name: str, place: Address) -> list[str]:
    given = {"address": place.address, "user": place.user, "port": place.port}
    lines = [f"    {key}: {emit.flow(value)}" for key, value in given.items() if value is not None]
    return [f"  {emit.text(name)}:", "    connection:", *(f"  {line}" for line in lines)]


# --- what was asked for --------------------------------------------------------------------------


def parse_host(text: str) -> tuple[str, Address]:
    """``name=user@address:port``, or without a name, which is then made from the address.

    Raises:
        ConfigErrors: the address does not parse.
    """
    name, equals, rest = text.partition("=")
    place = parse_address(rest if equals else text)
    return (name if equals else place.name), place


def parse_variable(text: str) -> tuple[str, Scalar]:
    """``NAME=VALUE``; the value is read as YAML where it is a scalar, so that 8000 is a number.

    Raises:
        UsageError: no name.
    """
    name, equals, rest = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} is no variable", "write --var NAME=VALUE")
    return name, read_value(rest)


def read_value(text: str) -> Scalar:
    """A scalar by the rules of YAML, or the text itself."""
    try:
        node = parse(f"value: {text}\n".encode(), Path("value")).at("value")
    except ConfigErrors:
        return text
    if node is None or node.value is None or isinstance(node.value, dict | list):
        return text
    return node.value


def required_variables(profile: Node) -> dict[str, str]:
    """Variables that a profile's templates name and give no default for, each with the key that
    first names it.
    """
    found: dict[str, str] = {}
    for node in profile.scalars():
        if node.text and is_template(node.text):
            for name in _REQUIRED.findall(node.text):
                found.setdefault(name, shown_path(node.path))
    return found


def missing_variables(profile: Node, given: Sequence[str]) -> dict[str, str]:
    """Those of `required_variables` that were not given."""
    return {name: key for name, key in required_variables(profile).items() if name not in given}
