"""``render``: what would be written to hosts, without a connection."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glm5_deploy.cli.options import (
    GroupOption,
    HostOption,
    InventoryOption,
    JsonOption,
    ProfileOption,
    selection,
)
from glm5_deploy.cli.runner import kernel_wheel, manifest

if TYPE_CHECKING:
    from glm5_deploy.config.models import Target

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder to write to; default: standard output."),
]


def render(
    inventory: InventoryOption = None,
    host: HostOption = None,
    group: GroupOption = None,
    profile: ProfileOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Show the unit, environment and profile of each host's release; secrets stay masked.

    Where there are secrets, RELEASE stands for the release's id, which depends on them.

    Example: glm5-deploy render --host bw1 --output rendered/
    """
    files = {t.name: _files(t) for t in selection(inventory, host, group, profile)}
    if output is not None:
        _write(files, output)
    elif json:
        typer.echo(json_module.dumps(files, indent=2))
    else:
        _print(files)


def _files(target: Target) -> dict[str, str]:
    from glm5_deploy.hosts.command import MASK, Secret
    from glm5_deploy.stages.desired import build_desired

    # References are not resolved: rendering needs no password manager, and shows no secret.
    desired = build_desired(
        target, resolve_secret=lambda _: Secret(MASK), kernel_wheel=kernel_wheel, manifest=manifest
    )
    release = desired.release
    files = {
        file.name: file.content.value if isinstance(file.content, Secret) else file.content
        for file in release.files
    }
    if not target.profile.secrets:
        return files
    # The id depends on what the secrets are, so the one made here is no release's.
    return {name: text.replace(release.identifier, "RELEASE") for name, text in files.items()}


def _write(files: dict[str, dict[str, str]], output: Path) -> None:
    for host, contents in files.items():
        folder = output / host
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
            typer.echo(str(folder / name), err=True)


def _print(files: dict[str, dict[str, str]]) -> None:
    for host, contents in files.items():
        for name, content in contents.items():
            typer.echo(f"# ==> {host}: {name}")
            typer.echo(content)


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(render)
