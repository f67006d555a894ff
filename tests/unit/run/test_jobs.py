"""Jobs that are followed over a connection that breaks. Their scripts run here, beside a stand-in
for systemd that knows one unit.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from glm5_deploy.errors import CommandFailedError, CommandTimeoutError, UnreachableError
from glm5_deploy.hosts.command import Command, command
from glm5_deploy.hosts.host import Result
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.jobs import end_job, run_job
from glm5_deploy.stages.change import Transient

# The unit is a file of properties. A transient unit is forgotten with its last state: `stop` ends
# one that runs or has exited, `reset-failed` one that failed.
SYSTEMCTL = r"""#!/bin/sh
unit=$UNITS/unit
state() { [ -e "$unit" ] && sed -n 's/^SubState=//p' "$unit" || echo dead; }
case $1 in
  show)
    [ -e "$unit" ] || { case $* in *--value*) ;; *) echo LoadState=not-found ;; esac; exit 0; }
    case $* in *"-p InvocationID --value"*) sed -n 's/^InvocationID=//p' "$unit"; exit 0 ;; esac
    [ "$(state)" = stop-sigterm ] || { cat "$unit"; exit 0; }
    cat "$unit"; mv "$UNITS/later" "$unit" ;;
  stop) [ "$(state)" = failed ] || rm -f "$unit" ;;
  reset-failed) [ "$(state)" != failed ] || rm -f "$unit" ;;
esac
"""
JOURNALCTL = """#!/bin/sh
case $* in *--sync*) exit 0 ;; esac
echo said; echo "-- cursor: c"
"""
RUN = """#!/bin/sh
cp "$UNITS/ends" "$UNITS/unit"
"""
DONE = "LoadState=loaded\nActiveState=active\nSubState=exited\nResult=success\nInvocationID=i1\n"
FAILED = (
    "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=3\n"
    "InvocationID=i1\n"
)


class Quick(Cancel):
    def sleep(self, seconds: float) -> None: ...


class Machine:
    """A `Host` whose commands run here. What `lost` numbers among the polls is carried out, and its
    answer never arrives."""

    name = "node1"

    def __init__(self, folder: Path, ends: str, lost: tuple[int, ...] = ()) -> None:
        self.folder, self.lost, self.polls = folder, lost, 0
        for name, text in (
            ("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL), ("systemd-run", RUN),
        ):  # fmt: skip
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "ends").write_text(ends)

    @property
    def unit(self) -> Path:
        return self.folder / "unit"

    def run(self, command: Command, **_more: object) -> Result:
        variables = {"PATH": f"{self.folder}:/usr/bin:/bin", "UNITS": str(self.folder)}
        done = subprocess.run(
            command.words(), env=variables, capture_output=True, text=True, check=False
        )
        if "--show-cursor" in command.argv[2]:
            self.polls += 1
            if self.polls in self.lost:
                raise UnreachableError("node1: the connection broke")
        return Result(command, done.returncode, done.stdout, done.stderr)


def follow(machine: Machine) -> tuple[str, ...]:
    job = Transient("glm5-job-test", command("true"), 30)
    return run_job(
        cast(Any, machine), job, cancel=Quick(), progress=lambda *_: None, note=lambda _: None
    )  # fmt: skip


@pytest.mark.parametrize("lost", [(), (1,), (1, 2)])
def test_a_job_whose_end_was_told_to_nobody_is_asked_again(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    machine = Machine(tmp_path, DONE, lost)
    assert follow(machine) == ("said",)
    assert machine.polls == len(lost) + 1
    assert not machine.unit.exists()


@pytest.mark.parametrize("lost", [(), (1,)])
def test_a_job_that_failed_leaves_no_unit_behind(tmp_path: Path, lost: tuple[int, ...]) -> None:
    machine = Machine(tmp_path, FAILED, lost)
    with pytest.raises(CommandFailedError, match="failed with status 3\nsaid"):
        follow(machine)
    assert not machine.unit.exists()


def test_one_that_is_being_stopped_has_not_ended(tmp_path: Path) -> None:
    late = FAILED.replace("exit-code", "timeout")
    machine = Machine(tmp_path, late.replace("failed", "deactivating", 1).replace(
        "SubState=failed", "SubState=stop-sigterm"
    ))  # fmt: skip
    (tmp_path / "later").write_text(late)
    with pytest.raises(CommandTimeoutError, match="ran past its limit of 30 s"):
        follow(machine)
    assert not machine.unit.exists()


def test_what_another_one_has_started_since_is_left(tmp_path: Path) -> None:
    """It took the ended one away, and started the same work anew."""
    machine = Machine(tmp_path, DONE)
    run = machine.run

    def meanwhile(command: Command, **more: object) -> Result:
        found = run(command, **more)
        if "--show-cursor" in command.argv[2]:
            machine.unit.write_text(DONE.replace("i1", "i2").replace("exited", "running"))
        return found

    machine.run = meanwhile  # type: ignore[method-assign]
    assert follow(machine) == ("said",)
    assert machine.unit.exists()


def test_a_host_that_is_lost_once_the_end_is_known_hides_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DONE)
    run = machine.run

    def gone(command: Command, **more: object) -> Result:
        if machine.polls:
            raise UnreachableError("node1: the connection broke")
        return run(command, **more)

    machine.run = gone  # type: ignore[method-assign]
    assert follow(machine) == ("said",)


@pytest.mark.parametrize("state", [DONE, DONE.replace("exited", "running"), FAILED])
def test_a_job_that_is_ended_leaves_no_unit_behind(tmp_path: Path, state: str) -> None:
    machine = Machine(tmp_path, DONE)
    machine.unit.write_text(state)
    end_job(cast(Any, machine), "glm5-job-test")
    assert not machine.unit.exists()
