"""`python -m glm5_kernel COMMAND`: what the package can do on a host from the command line."""

from __future__ import annotations

import argparse
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
    """Call the command's own `main`; 2 where there is no such command."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(words[:1])
    module = import_module(COMMANDS[options.command][0])
    status: int = module.main(words[1:])
    return status


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
