"""The program: its commands, and how errors reach the user."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from glm5_deploy import __version__
from glm5_deploy.errors import ExitCode, Glm5Error

app = typer.Typer(
    name="glm5-deploy",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="From a bare GPU host to a served, proven GLM-5: one command, safe to run again.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"glm5-deploy {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """From a bare GPU host to a served, proven GLM-5: one command, safe to run again."""
    del version


# In the order in which help lists them.
_COMMANDS = (
    "up", "smoke", "logs", "status", "preflight", "releases", "lifecycle", "render", "admin",
    "inventory", "init", "demo",
)  # fmt: skip


def _register() -> None:
    for name in _COMMANDS:
        import_module(f"glm5_deploy.cli.{name}").register(app)


_register()


def main() -> None:
    """Run the program; errors are one message and a hint, never a traceback."""
    try:
        app()
    except Glm5Error as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  → {error.hint}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(int(ExitCode.HOST_FAILED))
