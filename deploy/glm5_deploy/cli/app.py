"""The program: its commands, and how errors reach the user."""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from glm5_deploy import __version__
from glm5_deploy.cli.help import Group
from glm5_deploy.errors import ExitCode, Glm5Error

app = typer.Typer(
    name="glm5-deploy",
    cls=Group,
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
    "up", "smoke", "logs", "status", "bench", "preflight", "releases", "lifecycle", "render",
    "admin", "inventory", "model", "locks", "init", "demo",
)  # fmt: skip


def _register() -> None:
    for name in _COMMANDS:
        import_module(f"glm5_deploy.cli.{name}").register(app)


_register()


def _tolerate(*, json: bool) -> None:
    """Print what the terminal's encoding lacks as escapes, and JSON as UTF-8 everywhere."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if json and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")


def _interrupt(_number: int, _frame: object) -> None:
    """What ends this program from outside cleans up as Ctrl-C does."""
    raise KeyboardInterrupt


def _fail(words: list[str], message: str, hint: str | None, code: ExitCode) -> NoReturn:
    """Say an error that is no host's: to people, and to programs that asked for JSON."""
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"  → {hint}", file=sys.stderr)
    _document(words, message, hint)
    sys.exit(int(code))


def _document(words: list[str], message: str, hint: str | None) -> None:
    if "--json" not in words:
        return
    command = next((word for word in words if not word.startswith("-")), None)
    error = {"message": message, "hint": hint}
    document = {"command": command, "ok": False, "hosts": {}, "error": error}
    print(json.dumps(document, ensure_ascii=False), flush=True)


def main() -> None:
    """Run the program; errors are one message and a hint, never a traceback, and with ``--json``
    one document too.
    """
    words = sys.argv[1:]
    _tolerate(json="--json" in words)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except Glm5Error as error:
        _fail(words, error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        _fail(words, "interrupted", None, ExitCode.INTERRUPTED)
    except typer.Abort:
        _fail(words, "aborted: nothing was changed", None, ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(int(ExitCode.HOST_FAILED))
    except Exception as error:
        # Typer's class of these is in no public module.
        if not hasattr(error, "format_message"):
            _document(words, f"{type(error).__name__}: {error}", None)
            raise
        error.show()  # type: ignore[attr-defined]
        _document(words, error.format_message(), None)
        sys.exit(int(ExitCode.USAGE))
