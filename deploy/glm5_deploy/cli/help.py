"""What ``--help`` says: names of values instead of Python's types, and whole sentences."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from glm5_deploy.errors import StoppedError

_VALUES = {
    "inventory": "FILE",
    "junit": "FILE",
    "folder": "FOLDER",
    "output": "FOLDER",
    "root": "FOLDER",
    "profile": "NAME",
    "to": "RELEASE",
    "since": "TIME",
    "interval": "SECONDS",
    "serial": "N|N%",
    "forks": "N",
    "lines": "N",
    "max_failures": "N",
    "keep_releases": "N",
    "var": "NAME=VALUE",
}
"""What an option takes, by its parameter; for others, the parameter's own name."""


class Group(TyperGroup):
    """Commands whose options say what they take."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # typer hands over what it likes
        super().__init__(**attributes)
        for command in self.commands.values():
            for option in command.params:
                _name_value(option)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run a command; Ctrl-C is an error like others, of which typer would say nothing."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError("interrupted") from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Each command with its first sentence, which typer would cut at the end of the line."""
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name, command in self.commands.items()
            if not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _name_value(option: Any) -> None:  # noqa: ANN401  # typer's classes of these are not public
    if getattr(option, "count", False):
        option.show_default = False
    elif not getattr(option, "is_flag", True) and option.metavar is None:
        option.metavar = _VALUES.get(option.name, option.name.upper())
