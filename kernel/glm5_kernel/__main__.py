"""`python -m glm5_kernel COMMAND`: what the package can do on a host from the command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from glm5_kernel import __version__

COMMANDS = {
    "doctor": ("glm5_kernel.doctor", "say whether this host can serve with our kernels, and why"),
    "inspect": ("glm5_kernel.gguf.inspect", "read the header of a GGUF file"),
    "make-tiny": ("glm5_kernel.gguf.tiny", "write a tiny GLM-5 GGUF with tokenizer and config"),
}
"""Command to the module whose `main(argv) -> int` it calls, and what it is for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Call the command's own `main`; 2 where there is no such command, 130 on Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    _print_anything()
    try:
        options = _parser().parse_args(words[:1])
        module = import_module(COMMANDS[options.command][0])
        status: int = module.main(words[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read it (`| head`) has seen enough.
        _drop_output()
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        _drop_output()
        return 1
    return status


def _drop_output() -> None:
    """What could not be written is not tried again at the end of the process."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_anything() -> None:
    """A terminal without UTF-8, or a file's name that is none, must not end a report."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m glm5_kernel",
        usage="%(prog)s [--help] [--version] COMMAND …",
        epilog=f"commands:\n{listing}\n\nEach has a --help of its own.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"glm5-kernel {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
