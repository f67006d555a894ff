"""`Fact` and `gather`: many read-only commands in one round trip."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import CommandFailedError, SudoRefusedError
from glm5_deploy.hosts.command import Command, script
from glm5_deploy.hosts.host import Host

T = TypeVar("T")

FACT_LIMIT = 20
"""Seconds for each fact: a hanging nvidia-smi or a dead network mount must not hang all."""

TIMED_OUT = 124
"""Status of a fact that ran into the limit."""

RUNNER = r"""
mark=$1 limit=$2; shift 2
for base in /dev/shm /run /tmp /var/tmp "$HOME"; do
  work=$(mktemp -d "$base/glm5-facts-XXXXXXXX" 2>/dev/null) && break
done
if [ ! -d "$work" ]; then
  echo 'no folder to write in: /dev/shm, /run and /tmp are full or read-only' >&2
  exit 73
fi
trap 'rm -rf -- "$work"' EXIT
trap 'exit 143' HUP INT TERM
number=1000
for text do
  number=$((number + 1))
  {
    printf '\n%s out\n' "$mark" >"$work/$number.0"
    timeout -k 2 "$limit" sh -c "$text" >"$work/$number.1" 2>"$work/$number.3" </dev/null
    printf '\n%s err %s\n' "$mark" "$?" >"$work/$number.2"
  } &
done
wait
cat "$work"/*
printf '\n%s end\n' "$mark"
"""
"""$1 mark, $2 seconds for each, then one shell-quoted command a parameter. All run beside each
other; their outputs come in their order, between lines that begin with the mark."""


@dataclass(frozen=True)
class FactOutput:
    """What a fact's command left behind. Text is UTF-8 with undecodable bytes replaced."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


@dataclass(frozen=True)
class Fact(Generic[T]):
    """One thing to know about a host.

    Args:
        name: its key in what `gather` gives.
        command: changes nothing; runs as root where sudo allows, in the C locale, for 20 s at most.
        parse: pure; gets what the command left, also when it failed.
    """

    name: str
    command: Command
    parse: Callable[[FactOutput], T]


def gather(
    host: Host, facts: Sequence[Fact[Any]], *, sudo: bool = True, timeout: float = 60
) -> dict[str, Any]:
    """Run all facts' commands in one round trip and parse what they say.

    Where sudo is refused the facts are gathered as the login user, at the cost of a second round
    trip.

    Args:
        sudo: as root, where possible.
        timeout: seconds for all.

    Returns:
        each fact's value by its name.

    Raises:
        CommandFailedError: the host cannot run the commands at all.
        ValueError: two facts have one name.
    """
    names = [fact.name for fact in facts]
    if len(set(names)) != len(names):
        raise ValueError(f"facts with the same name: {sorted(names)}")
    mark = f"glm5-fact-{secrets.token_hex(8)}"
    command = runner(mark, facts)
    try:
        result = host.run(command, sudo=sudo, timeout=timeout, check=False)
    except SudoRefusedError:
        result = host.run(command, timeout=timeout, check=False)
    outputs = split(result.stdout, mark)
    if len(outputs) != len(facts):
        said = (
            result.stderr.strip()
            or f"status {result.returncode}, {len(outputs)} of {len(facts)} facts"
        )
        raise CommandFailedError(f"{host.name}: cannot gather facts: {said}")
    return {fact.name: fact.parse(output) for fact, output in zip(facts, outputs, strict=True)}


def runner(mark: str, facts: Sequence[Fact[Any]]) -> Command:
    """The one command for all facts."""
    return script(RUNNER, mark, FACT_LIMIT, *(fact.command.shell() for fact in facts))


def split(text: str, mark: str) -> list[FactOutput]:
    """Take the runner's output apart; incomplete output gives fewer facts."""
    outputs = []
    _, *sections = text.split(f"\n{mark} out\n")
    for section in sections:
        stdout, found, rest = section.partition(f"\n{mark} err ")
        status, _, stderr = rest.partition("\n")
        stderr = stderr.removesuffix(f"\n{mark} end\n")
        code = natural(status)
        if found and code is not None:
            outputs.append(FactOutput(code, stdout, stderr))
    return outputs
