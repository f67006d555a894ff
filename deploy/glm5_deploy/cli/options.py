"""Options that all commands share, and what they select."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glm5_deploy.config.models import Target
    from glm5_deploy.errors import UsageError
    from glm5_deploy.hosts.host import Host
    from glm5_deploy.hosts.peer import Peer
    from glm5_deploy.run.cancel import Cancel


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Host names for the shell's completion; none where there is no inventory."""
    from glm5_deploy.config.names import host_names

    return _complete(context, incomplete, host_names)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Group names for the shell's completion."""
    from glm5_deploy.config.names import group_names

    return _complete(context, incomplete, group_names)


def complete_profiles(context: typer.Context, incomplete: str) -> list[str]:
    """Profiles beside the inventory (or here) and those that ship, for the shell's completion."""
    from glm5_deploy.config.load import known_profiles
    from glm5_deploy.errors import Glm5Error

    try:
        names = known_profiles(context.params.get("inventory"))
    except Glm5Error:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _complete(
    context: typer.Context, incomplete: str, names: Callable[[Path], list[str]]
) -> list[str]:
    from glm5_deploy.config.load import find_inventory
    from glm5_deploy.errors import Glm5Error

    try:
        path = find_inventory(context.params.get("inventory"))
    except Glm5Error:
        return []
    return [name for name in names(path) if name.startswith(incomplete)] if path else []


InventoryOption = Annotated[
    Path | None,
    typer.Option(
        "--inventory",
        "-i",
        help="Inventory file; default: $GLM5_INVENTORY, else inventory.yml or"
        " inventory/inventory.yml here, else ~/.config/glm5-deploy/inventory.yml.",
    ),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="Host name or glob; repeatable. Without an inventory: user@address[:port].",
        autocompletion=complete_hosts,
    ),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option("--group", help="Group name; repeatable.", autocompletion=complete_groups),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Serve this profile instead of the inventory's.",
        autocompletion=complete_profiles,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
VerboseOption = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more.")]
ForksOption = Annotated[int, typer.Option("--forks", min=1, help="Hosts at the same time.")]


def selection(
    inventory: Path | None,
    hosts: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    profile: str | None = None,
) -> list[Target]:
    """The hosts that a command is about, complete with their profiles.

    Raises:
        UsageError: no inventory and no address, an unknown name, or an error in a file.
    """
    from glm5_deploy.config.load import adhoc, find_inventory, load_inventory, resolve
    from glm5_deploy.errors import UsageError

    path = find_inventory(inventory)
    direct = [host for host in hosts or () if "@" in host]
    if direct and (path is None or len(direct) == len(hosts or ())):
        if profile is None:
            raise UsageError("--host user@address needs --profile NAME", "see `--help`")
        own = (Path("profiles"), Path("inventory/profiles"))
        return [adhoc(address, profile, own) for address in direct]
    if path is None:
        raise _no_inventory(hosts or ())
    loaded = load_inventory(path)
    return resolve(loaded, hosts=hosts or (), groups=groups or (), profile=profile)


def _no_inventory(hosts: Sequence[str]) -> UsageError:
    from glm5_deploy.errors import UsageError

    if not hosts:
        hint = "run `glm5-deploy init`, name a file with -i, or give --host user@address"
        return UsageError("no inventory found", f"{hint} --profile P")
    hint = f"write --host USER@{hosts[0]} (an alias of your ssh_config will do), or name a file"
    return UsageError(f"no inventory found that says what `{hosts[0]}` is", f"{hint} with -i")


def base_folder(inventory: Path | None) -> Path:
    """Where relative references start: the inventory's folder, or this one."""
    from glm5_deploy.config.load import find_inventory

    path = find_inventory(inventory)
    return path.parent.resolve() if path else Path.cwd()


def connect(target: Target, inventory: Path | None = None) -> Host:
    """A host that is dialled on first use."""
    from glm5_deploy.hosts.connect import open_host

    return open_host(target, base_folder(inventory))


@contextmanager
def peer_of(name: str, inventory: Path | None, cancel: Cancel) -> Iterator[Peer]:
    """A host of the inventory that another one copies from, by its settings alone.

    Raises:
        UsageError: there is no inventory, or no such host in it.
    """
    from glm5_deploy.config.load import find_inventory, load_inventory, settings_of_host
    from glm5_deploy.errors import UsageError
    from glm5_deploy.hosts.connect import open_settings
    from glm5_deploy.hosts.peer import Peer

    path = find_inventory(inventory)
    if path is None:
        raise UsageError(f"{name} is in no inventory", "model.source_host needs one: see -i")
    settings = settings_of_host(load_inventory(path), name)
    with closing(open_settings(name, settings, path.parent.resolve())) as host:
        cancel.on_stop(host.abandon)
        yield Peer(host, host.route.address, host.route.port, settings.root)


def inventory_key(inventory: Path | None) -> str:
    """Names the inventory in this machine's state: a hash of its path."""
    import hashlib

    from glm5_deploy.config.load import find_inventory

    path = find_inventory(inventory)
    text = str(path.resolve()) if path else os.getcwd()
    return hashlib.sha256(text.encode()).hexdigest()[:12]
