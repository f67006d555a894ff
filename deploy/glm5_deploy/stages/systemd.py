"""Quoting for systemd's files, so that any value arrives as it is.

Rules: systemd.syntax(7), systemd.service(5) "Command lines", systemd.exec(5) "EnvironmentFile=".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote(text: str) -> str:
    """One word of a unit file: specifiers doubled, always in quotes, control characters escaped.

    Raises:
        ValueError: a NUL character, which no process can receive.
    """
    if "\0" in text:
        raise ValueError("a value holds a NUL character")
    return '"' + "".join(_escape(character) for character in double_specifiers(text)) + '"'


def double_specifiers(text: str) -> str:
    """A value that is not split into words, such as a path: only ``%`` means something in it."""
    return text.replace("%", "%%")


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\x{ord(character):02x}" if ord(character) < 32 or ord(character) == 127 else character


def exec_line(words: Iterable[str]) -> str:
    """The value of ``ExecStart=``: the prefix ``:`` keeps ``$`` from being expanded.

    Raises:
        ValueError: the program is not an absolute path, which systemd wants.
    """
    program, *arguments = words
    if not program.startswith("/"):
        raise ValueError(f"the engine's program must be an absolute path, not {program!r}")
    return " ".join((":" + quote(program), *(quote(argument) for argument in arguments)))


def environment_file(values: Mapping[str, str]) -> str:
    """``EnvironmentFile=`` text: double quotes with the four characters escaped that are special in
    them.

    Raises:
        ValueError: a value with a line break or a NUL, which would reach the service changed or not
        at all.
    """
    lines = []
    for name, value in sorted(values.items()):
        if any(character in value for character in "\0\n\r"):
            raise ValueError(f"the value of {name} holds a line break or a NUL character")
        for character in ("\\", '"', "$", "`"):
            value = value.replace(character, "\\" + character)
        lines.append(f'{name}="{value}"\n')
    return "".join(lines)
