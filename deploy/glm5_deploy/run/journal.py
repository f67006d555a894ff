"""What one start of a unit has said, read together with the unit's state."""

from __future__ import annotations

from dataclasses import dataclass

# journald reads the invocation from the process: where it came after a short life's end, the line
# names the unit alone (systemd 252, on a busy host two lives of 10 ms in three). It also skips the
# first line behind a cursor whose own line is another unit's: a first look begins with a time.
# SD_MESSAGE_SPAWN_FAILED is systemd's word on a process that it could not begin.
SAID = """
said() {
  unspawned=MESSAGE_ID=641257651c1b4ec9a8624d7a40a9e1e7
  case $3 in
    @*) from=--since=$3 ;;
    ?*) from=--after-cursor=$3 ;;
    *) from=--since=$(TZ=UTC systemctl show -p ExecMainStartTimestamp --value -- "$1") ;;
  esac
  case $from in
    --since=) set -- "_SYSTEMD_INVOCATION_ID=$2" ;;
    *) set -- "$from" "_SYSTEMD_INVOCATION_ID=$2" + "_SYSTEMD_UNIT=$1" + "UNIT=$1" $unspawned ;;
  esac
  journalctl -q --no-pager -o cat --show-cursor "$@" 2>/dev/null || :
}
"""
"""Shell function ``said UNIT INVOCATION FROM``: lines, and the cursor to go on from.

FROM: that cursor, or ``@seconds``, or nothing. Then lines of an earlier start in the same second
may show: systemd notes the time of a start when the process may have spoken already, so that only
whole seconds are safe.
"""


@dataclass(frozen=True)
class UnitState:
    """What one look at a unit shows."""

    properties: dict[str, str]
    lines: tuple[str, ...]
    cursor: str

    @property
    def running(self) -> bool:
        sub, active = self.properties.get("SubState"), self.properties.get("ActiveState")
        return sub == "running" or active == "activating"

    @property
    def over(self) -> bool:
        """Whether it has ended: one that is being stopped has not yet."""
        return not self.running and self.properties.get("ActiveState") != "deactivating"

    @property
    def succeeded(self) -> bool:
        return (
            self.properties.get("SubState") == "exited"
            and self.properties.get("Result") == "success"
        )


def parse_poll(output: str, cursor: str) -> UnitState:
    """Properties, a blank line, journal lines; the last names the cursor."""
    head, _, body = output.partition("\n\n")
    properties = dict(line.partition("=")[::2] for line in head.splitlines() if "=" in line)
    lines: list[str] = []
    for line in body.splitlines():
        if line.startswith("-- cursor: "):
            cursor = line.removeprefix("-- cursor: ")
        else:
            lines.append(line)
    return UnitState(properties, tuple(lines), cursor)
