"""A command in a transient unit with the sandbox of a service: as its user, with its devices, its
limits and its caches. So what the service will not be able to do shows before it is started.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from glm5_deploy.hosts.command import Command, command

# What only a server that stays needs. RemoveIPC would also take the running server's shared memory,
# which belongs to the same user. Which variables there are is said by `options`: secrets are nobody
# else's business.
_LEFT_OUT = frozenset({
    "Type", "ExecStart", "EnvironmentFile", "WorkingDirectory", "Restart", "RestartSec",
    "TimeoutStopSec", "OOMPolicy", "SyslogIdentifier", "RemoveIPC",
})  # fmt: skip


def sandboxed(*words: object, unit: str, options: list[str], purpose: str, limit: int) -> Command:
    """Runs to its end; its output is the command's.

    Args:
        words: program and arguments.
        unit: the text of the service's unit; its properties are taken over.
        options: of systemd-run, such as those that set variables (`variables`, `variables_of`).
        purpose: shown as the transient unit's description.
        limit: seconds until systemd ends it.
    """
    properties = [word for line in _properties(unit) for word in ("-p", line)]
    # systemd expands $NAME in what systemd-run is given.
    plain = [str(word).replace("$", "$$") for word in words]
    return command(
        "systemd-run", "--quiet", "--pipe", "--wait", "--collect",
        f"--description=glm5-deploy: {purpose}", "-p", f"RuntimeMaxSec={limit}",
        # A host that runs out of memory ends this, and not the server beside it.
        "-p", "OOMScoreAdjust=1000", *properties, *options, "--", *plain,
    )  # fmt: skip


def _properties(unit: str) -> list[str]:
    """The lines of ``[Service]`` that shape what a process may do."""
    body = unit.partition("[Service]\n")[2].partition("\n[")[0]
    lines = [line for line in body.splitlines() if "=" in line and not line.startswith("#")]
    return [line for line in lines if line.partition("=")[0] not in _LEFT_OUT]


def variables(values: dict[str, str]) -> list[str]:
    """The options that set these variables."""
    return [f"--setenv={name}={value}" for name, value in sorted(values.items())]


def variables_of(file: PurePosixPath) -> list[str]:
    """The options that take the variables from a file on the host."""
    return ["-p", f"EnvironmentFile={file}"]
