"""``lock`` and ``wheelhouse``: what environments are made of. No connection."""

from __future__ import annotations

import json as json_module
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glm5_deploy.cli.options import JsonOption

if TYPE_CHECKING:
    from glm5_deploy.errors import StoppedError
    from glm5_deploy.locks.text import Difference, Recipe
    from glm5_deploy.locks.wheels import Wheelhouse

LockArgument = Annotated[
    str, typer.Argument(metavar="LOCK", help="A lock's name, or the path of one.")
]
PythonOption = Annotated[
    str | None, typer.Option("--python", help="Version; default: what the lock says.")
]
PlatformOption = Annotated[
    str | None,
    typer.Option("--platform", help="Such as x86_64-manylinux_2_31; default: what the lock says."),
]


def lock(
    name: LockArgument,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="DAY", help="Nothing newer counts; default: today."),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require", metavar="REQUIREMENT", help="Instead of the lock's own; repeatable."
        ),
    ] = None,
    python: PythonOption = None,
    platform: PlatformOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write the lock; without it, show what would change.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write it there instead.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Resolve a lock anew, as of a day, and show what changes in it.

    Without --write or --output, exit code 1 means that something would change.

    Example: glm5-deploy lock vllm-0.26.0-cu130 --as-of 2026-11-25
    """
    from glm5_deploy.errors import ExitCode
    from glm5_deploy.locks.resolve import resolve
    from glm5_deploy.locks.text import compose, differences, pins, title_of

    path, before = _read(name, new=bool(require))
    recipe = _recipe(before, str(path), require, python, platform, as_of)
    typer.echo(f"resolving {', '.join(recipe.requires)} as of {recipe.as_of}", err=True)
    after = compose(title_of(before) or [f"# {path.stem}"], recipe, resolve(recipe))
    found = differences(pins(before), pins(after))
    target = output or (path if write else None)
    if target is not None:
        _write(target, after)
    _show(path, found, len(pins(after)), target, json=json)
    if found and target is None:
        raise typer.Exit(int(ExitCode.HOST_FAILED))


def wheelhouse(
    name: LockArgument,
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the wheels are put."),
    ],
    python: PythonOption = None,
    platform: PlatformOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Download nothing: say what is missing or damaged.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove wheels that the lock does not name.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Fill a folder with the wheels of a lock, for hosts without a package index.

    What is there already and has the lock's hash stays, and a download that broke off goes on.
    `wheelhouse: FOLDER` in the inventory makes `up` copy it to hosts.

    Example: glm5-deploy wheelhouse vllm-0.26.0-cu130 --output wheels
    """
    from glm5_deploy.errors import ExitCode
    from glm5_deploy.locks.wheels import damaged, fill, look, surplus

    path, text = _read(name, new=False)
    if check:
        found, wrong = look(text, folder), damaged(text, folder)
    else:
        version, tag = _for(text, str(path), python, platform)
        told = Progress()
        try:
            found, wrong = fill(path, folder, python=version, platform=tag, told=told), []
        except KeyboardInterrupt as error:
            raise _stopped(folder, look(text, folder)) from error
        finally:
            told.end()
    removed = surplus(text, folder) if prune and not check else []
    for wheel in removed:
        wheel.unlink()
    names = tuple(each.name for each in wrong)
    _show_wheels(folder, found, names, len(removed), json=json)
    if found.missing or wrong:
        if not json:
            words = shlex.join(["glm5-deploy", "wheelhouse", name, "--output", str(folder)])
            typer.echo(f"  → {words} fetches what is missing or damaged", err=True)
        raise typer.Exit(int(ExitCode.HOST_FAILED))


def _stopped(folder: Path, found: Wheelhouse) -> StoppedError:
    from glm5_deploy.errors import StoppedError

    of = f"{found.present} of {found.present + len(found.missing)} packages"
    return StoppedError(f"interrupted: {of} are in {folder}", "the next run fetches the others")


def _read(name: str, *, new: bool) -> tuple[Path, str]:
    """A lock and its text; one that is to be made has none yet."""
    from glm5_deploy.config.locks import lock_path, missing_lock
    from glm5_deploy.errors import UsageError
    from glm5_deploy.locks.text import read_lock

    try:
        path = lock_path(name)
    except UsageError:
        if new and ("/" in name or name.endswith((".txt", ".lock"))):
            return Path(name).expanduser().absolute(), ""
        message, hint = missing_lock(name)
        raise UsageError(message, f"{hint}; a new one: FILE.txt with --require") from None
    return path, read_lock(path)


def _recipe(
    text: str,
    origin: str,
    require: list[str] | None,
    python: str | None,
    platform: str | None,
    as_of: str | None,
) -> Recipe:
    """The lock's own, with what the options say instead."""
    import datetime

    from glm5_deploy.errors import UsageError
    from glm5_deploy.locks.resolve import day
    from glm5_deploy.locks.text import Recipe, read_recipe
    from glm5_deploy.locks.wheels import platform_tags

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    when = day(as_of or today)
    if text and not (require and python and platform):
        own = read_recipe(text, origin)
    elif require:
        own = Recipe((), "3.12", "x86_64-manylinux_2_31", when)
    else:
        raise UsageError(f"{origin} is empty", "say what is to be in it with --require")
    # What no wheelhouse could be filled for is found now, and not when it is.
    platform_tags(platform or own.platform)
    return Recipe(
        tuple(require or own.requires), python or own.python, platform or own.platform, when
    )


def _for(text: str, origin: str, python: str | None, platform: str | None) -> tuple[str, str]:
    from glm5_deploy.locks.text import read_recipe

    if python and platform:
        return python, platform
    own = read_recipe(text, origin)
    return python or own.python, platform or own.platform


def _write(target: Path, text: str) -> None:
    import os

    from glm5_deploy.errors import UsageError

    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}", "name another file with --output"
        ) from error


def _show(
    path: Path, found: tuple[Difference, ...], packages: int, written: Path | None, *, json: bool
) -> None:
    if json:
        from dataclasses import asdict

        document = {
            "command": "lock",
            "ok": written is not None or not found,
            "lock": path.stem,
            "packages": packages,
            "differences": [asdict(each) for each in found],
            "written": str(written) if written else None,
        }
        typer.echo(json_module.dumps(document, indent=2, ensure_ascii=False))
        return
    for each in found:
        typer.echo(str(each))
    count = f"{len(found)} of {packages} packages differ" if found else "nothing differs"
    end = f"written to {written}" if written else "not written" if found else "up to date"
    typer.echo(f"{path.stem}: {count}; {end}", err=True)


class Progress:
    """What comes now: one line that is written over on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = -1

    def __call__(self, text: str, fraction: float) -> None:
        tenth = int(fraction * 10)
        if self._live:
            typer.echo(f"\r\033[K{fraction:4.0%} {text}", nl=False, err=True)
        elif tenth > self._said:
            typer.echo(f"{fraction:4.0%} {text}", err=True)
        self._said = tenth

    def end(self) -> None:
        """Leave the terminal's line as it was."""
        if self._live and self._said >= 0:
            typer.echo("\r\033[K", nl=False, err=True)


def _show_wheels(
    folder: Path, found: Wheelhouse, wrong: tuple[str, ...], removed: int, *, json: bool
) -> None:
    if json:
        document = {
            "command": "wheelhouse",
            "ok": not found.missing and not wrong,
            "folder": str(folder),
            "present": found.present,
            "missing": list(found.missing),
            "damaged": list(wrong),
            "bytes": found.bytes,
            "removed": removed,
        }
        typer.echo(json_module.dumps(document, indent=2))
        return
    for each in found.missing:
        typer.echo(f"- {each}")
    for each in wrong:
        typer.echo(f"✗ {each}  not what the lock's hash says")
    gone = f", {removed} others removed" if removed else ""
    bad = f", {len(wrong)} damaged" if wrong else ""
    count = f"{found.present} of {found.present + len(found.missing)} packages"
    typer.echo(f"{folder}: {count}, {found.bytes / 1e9:.2f} GB{bad}{gone}", err=True)


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(lock)
    app.command()(wheelhouse)
