"""``inventory check``, ``show`` and ``schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glm5_deploy.cli.help import Group
from glm5_deploy.cli.options import GroupOption, HostOption, InventoryOption, JsonOption

if TYPE_CHECKING:
    from collections.abc import Sized
    from pathlib import Path

    from glm5_deploy.config.errors import ConfigProblem
    from glm5_deploy.config.load import LoadedInventory


def check(inventory: InventoryOption = None, json: JsonOption = False) -> None:
    """Say everything that is wrong with the inventory and its profiles.

    Example: glm5-deploy inventory check -i hosts.yml
    """
    from glm5_deploy.config.errors import ConfigErrors
    from glm5_deploy.config.load import check_inventory, load_inventory
    from glm5_deploy.errors import ExitCode

    path = _path(inventory)
    try:
        loaded = load_inventory(path)
        warnings = check_inventory(loaded)
    except ConfigErrors as error:
        if not json:
            raise
        errors = [_plain(problem) for problem in error.problems]
        _print_json("inventory check", {"ok": False, "errors": errors, "warnings": []})
        raise typer.Exit(int(ExitCode.USAGE)) from error
    if json:
        plain = [_plain(warning) for warning in warnings]
        _print_json("inventory check", {**_summary(loaded), "warnings": plain})
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"OK: {_count(loaded.host_names, 'host')}, {_count(loaded.profiles, 'profile')}")


def show(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value was written.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print what holds for each host after merging.

    References to secrets are shown as references.

    Example: glm5-deploy inventory show --host bw1 --origin
    """
    from glm5_deploy.config.load import load_inventory
    from glm5_deploy.config.select import select_names
    from glm5_deploy.config.show import as_json, as_yaml, collect

    loaded = load_inventory(_path(inventory))
    names = select_names(loaded.groups, loaded.group_names, host or (), group or ())
    shown = collect(loaded, names)
    if json:
        hosts = as_json(shown, with_origin=origin)
        _print_json("inventory show", {"ok": True, "hosts": hosts})
    else:
        typer.echo(as_yaml(shown, with_origin=origin), nl=False)


def schema(
    profile: Annotated[
        bool, typer.Option("--profile", help="Of a profile's file instead of an inventory.")
    ] = False,
) -> None:
    """Print the JSON schema, for editors that check YAML.

    Example: glm5-deploy inventory schema > schema.json

    Then `# yaml-language-server: $schema=schema.json` in the inventory makes an editor read it.
    """
    from glm5_deploy.config.schema import schema_text

    typer.echo(schema_text("profile" if profile else "inventory"), nl=False)


def _path(inventory: Path | None) -> Path:
    from glm5_deploy.config.load import find_inventory
    from glm5_deploy.errors import UsageError

    path = find_inventory(inventory)
    if path is None:
        raise UsageError("no inventory found", "run `glm5-deploy init`, or name a file with -i")
    return path


def _summary(loaded: LoadedInventory) -> dict[str, object]:
    return {
        "ok": True,
        "hosts": list(loaded.host_names),
        "profiles": list(loaded.profiles),
        "errors": [],
    }


def _plain(problem: ConfigProblem) -> dict[str, object]:
    return {
        "file": None if problem.file is None else str(problem.file),
        "line": problem.line,
        "column": problem.column,
        "key_path": problem.key_path,
        "message": problem.message,
        "hint": problem.hint,
    }


def _print_json(command: str, document: dict[str, object]) -> None:
    import json

    typer.echo(json.dumps({"command": command, **document}, ensure_ascii=False, indent=2))


def _count(things: Sized, noun: str) -> str:
    number = len(things)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(
        cls=Group,
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Look at the inventory; no connection.",
    )
    group.command()(check)
    group.command()(show)
    group.command()(schema)
    app.add_typer(group, name="inventory")
