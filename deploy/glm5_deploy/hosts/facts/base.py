"""Facts about a vLLM that a host has already: its interpreter, and what is installed there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import TIMED_OUT, Fact, FactOutput

LOOK = """
[ -x "$1" ] || exit 45
python=$1 program=$2; shift 2
exec timeout 15 "$python" -I -c "$program" "$@"
"""
"""$1 the interpreter, $2 the program that it runs, then folders of packages."""

MISSING = 45

DESCRIBE = """
import json, os, site, sys, sysconfig
from importlib import metadata
absent = [path for path in sys.argv[1:] if not os.path.isdir(path)]
seen = [*sys.argv[1:], *site.getsitepackages()]
def version(name):
    found = next(iter(metadata.distributions(name=name, path=seen)), None)
    return found and [found.version, str(found.locate_file(''))]
print(json.dumps({
    'python': list(sys.version_info[:3]),
    'headers': os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')),
    'absent': absent,
    'found': {name: version(name) for name in ('vllm', 'torch', 'triton', 'vllm-gguf-plugin')},
}))
"""


@dataclass(frozen=True)
class BaseFacts:
    """What the interpreter of a profile's `engine.base` says.

    Args:
        version: of Python, for instance (3, 12, 4); empty where it did not run.
        headers: ``Python.h`` is there, as Triton needs.
        versions: of vLLM and what it stands on, by distribution; those that are there.
        places: where they lie.
        absent: folders of packages that do not exist.
        problem: why nothing is known, or None.
    """

    version: tuple[int, ...] = ()
    headers: bool = False
    versions: dict[str, str] | None = None
    places: dict[str, str] | None = None
    absent: tuple[str, ...] = ()
    problem: str | None = None


def base_fact(python: PurePosixPath, sites: Sequence[PurePosixPath]) -> Fact[BaseFacts]:
    """What the interpreter sees, without importing any of it."""
    return Fact("base", script(LOOK, python, DESCRIBE, *sites), parse_base)


def parse_base(output: FactOutput) -> BaseFacts:
    """Read what `DESCRIBE` prints."""
    if output.returncode == MISSING:
        return BaseFacts(problem="it is not there, or cannot be executed")
    if output.returncode == TIMED_OUT:
        return BaseFacts(problem="it does not answer in time")
    try:
        document = json.loads(output.stdout.strip().splitlines()[-1])
        found = {name: pair for name, pair in document["found"].items() if pair}
        return BaseFacts(
            tuple(document["python"]),
            bool(document["headers"]),
            {name: str(pair[0]) for name, pair in found.items()},
            {name: str(pair[1]) for name, pair in found.items()},
            tuple(document["absent"]),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        said = (output.stderr or output.stdout).strip().splitlines()
        return BaseFacts(problem=said[-1][:200] if said else f"status {output.returncode}")
