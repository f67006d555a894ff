"""``init``: the first inventory, from answers or from flags."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from glm5_deploy.config.address import Address
    from glm5_deploy.config.node import Node, Scalar
    from glm5_deploy.config.starter import Starter

FILE_NAME = "inventory.yml"
T = TypeVar("T")


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write inventory.yml into.")
    ] = Path(),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="NAME=user@address[:port]; repeatable."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="What the hosts serve; may be given later.")
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="Our folder on the hosts; default /opt/glm5.")
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option("--var", help="NAME=VALUE for {{ vars.NAME }} in the profile; repeatable."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take flags and defaults.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an inventory.")] = False,
) -> None:
    """Write a commented inventory that passes `inventory check`; ask for what no flag says.

    Example: glm5-deploy init --host bw1=root@192.0.2.1 --yes
    """
    from glm5_deploy.errors import UsageError

    path = directory / FILE_NAME
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force replaces it")
    try:
        starter = _starter(directory, host, profile, root, var, ask=not yes)
    except typer.Abort as abort:
        if sys.stdin.isatty():
            raise KeyboardInterrupt from abort
        raise UsageError(
            "there is nobody to answer", "say it with --host, --profile, --root, --var, and --yes"
        ) from abort
    _write(path, starter)
    count = len(starter.hosts)
    typer.echo(f"{path}: {count} host{'' if count == 1 else 's'}")
    typer.echo(f"next: glm5-deploy preflight -i {path}", err=True)


def _starter(
    directory: Path,
    hosts: Sequence[str] | None,
    profile: str | None,
    root: str | None,
    variables: Sequence[str] | None,
    *,
    ask: bool,
) -> Starter:
    from glm5_deploy.config.starter import Starter, parse_host, parse_variable

    given = dict(parse_host(text) for text in hosts or ())
    if not given and ask:
        given = _ask_hosts()
    if root is None:
        root = _ask_root(given) if ask else "/opt/glm5"
    known = _profiles(directory)
    if profile is None and ask:
        profile = _ask_profile(known)
    values = dict(parse_variable(text) for text in variables or ())
    if profile is not None:
        values |= _missing_values(profile, known, values, ask=ask)
    return Starter(given, profile, root, values)


def _profiles(directory: Path) -> dict[str, Node]:
    """What the inventory will be able to name: profiles beside it, and those that ship."""
    from glm5_deploy.config.errors import ConfigErrors
    from glm5_deploy.config.profiles import load_profiles, profile_files, shipped_profiles

    own, problems = load_profiles(profile_files([directory.absolute() / "profiles"]))
    if problems:
        raise ConfigErrors(problems)
    return {**shipped_profiles(), **own}


def _missing_values(
    name: str, known: Mapping[str, Node], values: Mapping[str, Scalar], *, ask: bool
) -> dict[str, Scalar]:
    from glm5_deploy.config.profiles import find_profile
    from glm5_deploy.config.starter import missing_variables, read_value
    from glm5_deploy.errors import UsageError

    missing = missing_variables(find_profile(name, known), list(values))
    if missing and not ask:
        flags = " ".join(f"--var {variable}=…" for variable in missing)
        raise UsageError(
            f"the profile {name} needs a value for {', '.join(missing)}", f"add {flags}"
        )
    return {
        variable: read_value(_ask(f"{variable} ({key} of {name})", None))
        for variable, key in missing.items()
    }


def _ask(question: str, default: str | None) -> str:
    answer: str = typer.prompt(question, default=default, show_default=bool(default), err=True)
    return answer.strip()


def _ask_hosts() -> dict[str, Address]:
    from glm5_deploy.config.starter import Starter, parse_host

    found: dict[str, Address] = {}

    def read(answer: str) -> bool:
        if not answer:
            return False
        name, place = parse_host(answer)
        _shape(Starter({**found, name: place}))
        found[name] = place
        return True

    while _ask_again("Host, as [name=]user@address[:port] (empty: no more)", "", read):
        pass
    return found


def _ask_root(hosts: Mapping[str, Address]) -> str:
    from glm5_deploy.config.starter import Starter

    def read(answer: str) -> str:
        _shape(Starter(hosts, root=answer))
        return answer

    return _ask_again("Our folder on the hosts", "/opt/glm5", read)


def _ask_profile(known: Mapping[str, Node]) -> str | None:
    from glm5_deploy.config.profiles import find_profile

    def read(answer: str) -> str | None:
        if answer:
            find_profile(answer, known)
        return answer or None

    return _ask_again(f"Profile ({', '.join(known)}; empty: later)", "", read)


def _ask_again(question: str, default: str, read: Callable[[str], T]) -> T:
    """Ask until the answer will do: one slip does not cost the answers before it."""
    from glm5_deploy.config.errors import ConfigErrors

    while True:
        try:
            return read(_ask(question, default))
        except ConfigErrors as error:
            for problem in error.problems:
                # The file that the others are about is not there yet.
                said = str(problem) if problem.file is None else problem.message
                typer.echo(said, err=True)


def _shape(starter: Starter) -> None:
    """Raise ConfigErrors for what is wrong so far."""
    from glm5_deploy.config.load import load_document
    from glm5_deploy.config.starter import inventory_text
    from glm5_deploy.config.yaml import parse_parts

    path = Path(FILE_NAME).absolute()
    load_document(*parse_parts(inventory_text(starter).encode(), path), path)


def _write(path: Path, starter: Starter) -> None:
    """Written only when it is right; another reader sees the old file or the whole new one."""
    from glm5_deploy.config.load import check_inventory, load_document
    from glm5_deploy.config.starter import inventory_text
    from glm5_deploy.config.yaml import parse_parts
    from glm5_deploy.errors import UsageError

    content = inventory_text(starter).encode()
    check_inventory(load_document(*parse_parts(content, path.absolute()), path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path} cannot be written: {reason}") from error


def _replace(path: Path, content: bytes) -> None:
    import os
    import tempfile

    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        try:
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
            os.chmod(new.name, 0o644)
            os.replace(new.name, path)
        except BaseException:
            os.unlink(new.name)
            raise


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(init)
