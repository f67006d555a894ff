"""Real hosts for the end-to-end tests, and the command line as a user runs it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from glm5_deploy.demo.bed import Bed, BedHost
from glm5_deploy.demo.rootfs import BedUnavailableError, Variant, require_prerequisites

CHECKOUT = Path(__file__).parents[2]

RESET = """
for unit in $(systemctl list-units --all --plain --no-legend 'glm5-*' | cut -d' ' -f1); do
    systemctl kill --signal=KILL "$unit" 2>/dev/null
    systemctl stop "$unit" 2>/dev/null
done
files=$(systemctl list-unit-files --plain --no-legend 'glm5-*' | cut -d' ' -f1)
systemctl disable $files 2>/dev/null
rm -rf /etc/systemd/system/glm5-* /run/systemd/system/glm5-* /run/systemd/transient/glm5-*
systemctl daemon-reload
systemctl reset-failed 'glm5-*' 2>/dev/null
findmnt --raw --noheadings --output TARGET | grep '^/opt/glm5' | xargs -r umount -l
journalctl --quiet --rotate --vacuum-size=1
rm -rf /opt/glm5 /var/lib/glm5* /var/cache/glm5* /run/glm5*
userdel glm5 2>/dev/null
exit 0
"""


LONGEST = (
    "test_demo.py", "test_interrupted.py", "test_revert.py", "test_delivery.py", "test_up.py",
    "test_fleet.py",
)  # fmt: skip
"""A file belongs to one worker: what takes minutes comes first, so that no worker ends alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked ``e2e``, the longest files first."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    name = item.path.name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def bed(worker_id: str) -> Iterator[Bed]:
    """Three hosts, ``node1`` to ``node3``, with Python, a compiler and rsync."""
    yield from _booted("ready", ("node1", "node2", "node3"), worker_id)


@pytest.fixture(scope="session")
def bare_bed(worker_id: str) -> Iterator[Bed]:
    """One host, ``bare1``, with no Python, compiler or rsync, which can reach package mirrors."""
    yield from _booted("bare", ("bare1",), worker_id, nat=True)


@pytest.fixture(scope="session")
def worker_id(request: pytest.FixtureRequest) -> str:
    """pytest-xdist's name of this process; ``master`` without it."""
    workerinput = getattr(request.config, "workerinput", {})
    return str(workerinput.get("workerid", "master"))


def _booted(
    variant: Variant, names: Sequence[str], worker: str, nat: bool = False
) -> Iterator[Bed]:
    _require()
    with _own_folder(f"{worker}-{variant}") as folder:
        bed = Bed(folder, variant=variant, nat=nat)
        try:
            bed.up(names)
            yield bed
        finally:
            bed.down()


@contextmanager
def _own_folder(kind: str) -> Iterator[Path]:
    """A bed's folder that no other run of this checkout uses now.

    Names are used again, so that a run clears away what a killed one left.
    """
    checkout = zlib.crc32(str(CHECKOUT).encode())
    for slot in range(32):
        folder = Path("/var/tmp") / f"glm5-tests-{checkout:08x}-{slot}-{kind}"
        with folder.with_suffix(".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield folder
            return
    pytest.fail("32 runs of this checkout at the same time")


def _require() -> None:
    """Skip where hosts cannot be booted; in CI that is a failure."""
    try:
        require_prerequisites()
    except BedUnavailableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{error.message} ({error.hint})")


def reset(host: BedHost) -> BedHost:
    """Take away whatever a test left on a host: units, files, a cut network."""
    host.restore()
    host.exec(["sh", "-c", RESET])
    return host


@pytest.fixture
def fresh_host(bed: Bed) -> BedHost:
    """``node1`` with nothing of ours on it."""
    return reset(bed.hosts["node1"])


@pytest.fixture
def fresh_hosts(bed: Bed) -> list[BedHost]:
    """All three hosts with nothing of ours on them."""
    return [reset(host) for host in bed.hosts.values()]


@dataclass(frozen=True)
class CliResult:
    """What a finished ``glm5-deploy`` left."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:  # noqa: ANN401
        """The one document on stdout."""
        return json.loads(self.stdout)

    @property
    def output(self) -> str:
        """Everything it said, for searching."""
        return self.stdout + self.stderr


class Cli(Protocol):
    """``glm5-deploy`` as a subprocess, with a home folder of the test's own."""

    home: Path

    def __call__(
        self,
        *args: str | Path,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 600,
        expect: int | None = None,
    ) -> CliResult: ...

    def start(
        self, *args: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]: ...


class _Cli:
    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(
        self,
        *args: str | Path,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 600,
        expect: int | None = None,
    ) -> CliResult:
        """Run to the end; ``expect`` asserts the exit code and shows all output if it differs."""
        argv = self._argv(args)
        done = subprocess.run(
            argv,
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self._environment(env),
            cwd=self.home,
            check=False,
        )
        result = CliResult(tuple(argv), done.returncode, done.stdout, done.stderr)
        if expect is not None:
            assert result.returncode == expect, f"{argv}\n{result.stdout}\n{result.stderr}"
        return result

    def start(
        self, *args: str | Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start it in a process group of its own, with both outputs piped; the test ends it."""
        return subprocess.Popen(
            self._argv(args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment(env),
            cwd=self.home,
            start_new_session=True,
        )

    def _argv(self, args: Sequence[str | Path]) -> list[str]:
        return [sys.executable, "-m", "glm5_deploy", *(str(arg) for arg in args)]

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        return {
            **kept,
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(_cache_home()),
            "PYTHONPATH": str(CHECKOUT / "deploy"),
            "COLUMNS": "120",
            "NO_COLOR": "1",
            **(extra or {}),
        }


def _cache_home() -> Path:
    """The real one: what is cached there is large and shared by all tests."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run ``glm5-deploy``: ``cli("up", "-i", inventory, "--json", expect=0).json``."""
    home = tmp_path / "home"
    home.mkdir()
    return _Cli(home)
