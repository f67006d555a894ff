"""Facts about the Python interpreters of a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.facts.fact import Fact, FactOutput

FIND_PYTHONS = r"""
program=$1; shift
seen=' '
for python in "$@" /usr/local/bin/python3 /usr/local/bin/python3.* \
  /usr/bin/python3 /usr/bin/python3.* $(command -v python3)
do
  case ${python##*/} in *-*|*.py) continue;; esac
  [ -x "$python" ] || continue
  real=$(readlink -f -- "$python")
  case $seen in *" $real "*) continue;; esac
  seen="$seen$real "
  timeout 10 "$python" -I -S -c "$program" "$python" 2>/dev/null
done
exit 0
"""
"""$1 the program that an interpreter runs, then more interpreters to look at."""

DESCRIBE = (
    "import os, sys, sysconfig\n"
    "print('%d.%d.%d' % sys.version_info[:3],"
    " os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')),"
    " sys.argv[1], sep='\\t')\n"
)


@dataclass(frozen=True)
class Python:
    """An interpreter.

    Args:
        path: as it was found.
        version: for instance (3, 12, 4).
        headers: ``Python.h`` is there, as compilers of extensions need.
    """

    path: PurePosixPath
    version: tuple[int, int, int]
    headers: bool

    @property
    def minor(self) -> str:
        """``3.12``."""
        return f"{self.version[0]}.{self.version[1]}"


def python_fact(*extra: PurePosixPath) -> Fact[tuple[Python, ...]]:
    """Interpreters in PATH and the usual places, and those named; each real file once, those named
    first.
    """
    return Fact("pythons", script(FIND_PYTHONS, DESCRIBE, *extra), parse_pythons)


def parse_pythons(output: FactOutput) -> tuple[Python, ...]:
    """Read what `DESCRIBE` prints; other lines (an interpreter that complains) are skipped."""
    found = []
    for line in output.stdout.splitlines():
        parts = line.split("\t")
        if len(parts) != 3 or parts[0].count(".") != 2:
            continue
        major, minor, patch = (int(part) for part in parts[0].split("."))
        path, headers = PurePosixPath(parts[2]), parts[1] == "True"
        found.append(Python(path, (major, minor, patch), headers))
    return tuple(found)
