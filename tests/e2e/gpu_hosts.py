"""A test host that looks like a recorded GPU host: its nvidia-smi, device nodes and their groups.

Device nodes are real ones of another kind under NVIDIA's names, and the list of the kernel's device
groups says so; everything else of the host is as it is.
"""

from __future__ import annotations

import json
from typing import Any

from glm5_deploy.demo.bed import BedHost

from tests.e2e.conftest import CHECKOUT

FAKES = CHECKOUT / "tests" / "fakes"
PLACE = "/srv/gpus"
# While the service runs, its main process holds the GPUs.
WRAPPER = """#!/bin/sh
pid=$(systemctl show --property=MainPID --value UNIT)
kind=idle; [ "${pid:-0}" = 0 ] || kind=serving
copy=$(mktemp) && sed "s/4242/$pid/g" PLACE/$kind.json >"$copy"
NVIDIA_SMI_RECORDING=$copy python3 PLACE/nvidia_smi.py "$@"
status=$?; rm -f "$copy"; exit $status
"""
MAJORS = (
    "Character devices:\n  1 mem\n  1 nvidia\n  1 nvidiactl\n  1 nvidia-uvm\n\nBlock devices:\n"
)
SET_UP = r"""
place=$1; shift
install -m 755 "$place/wrapper" /usr/local/bin/nvidia-smi
mount --bind "$place/majors" /proc/devices
for node do touch "/dev/$node"; mount --bind /dev/null "/dev/$node"; done
"""
TAKE_DOWN = r"""
systemctl stop "$1"
rm -rf /usr/local/bin/nvidia-smi /srv/gpus
umount -l /proc/devices
for node in /dev/nvidia*; do umount -l "$node"; rm -f "$node"; done
exit 0
"""


def become(host: BedHost, recording: str, unit: str) -> None:
    """Make a host like the recorded one; ``unit`` is the service that will use its GPUs."""
    said: dict[str, Any] = json.loads((FAKES / "gpus" / f"{recording}.json").read_text())
    gpus = said.get("gpus", [])
    busy = [{**gpu, "memory.used": 85012} for gpu in gpus]
    apps = [[gpu["uuid"], 4242, 85004, "VLLM::Worker"] for gpu in gpus]
    files = {
        "idle.json": json.dumps(said),
        "serving.json": json.dumps({**said, "gpus": busy, "apps": apps}),
        "nvidia_smi.py": (FAKES / "nvidia_smi.py").read_text(),
        "wrapper": WRAPPER.replace("UNIT", unit).replace("PLACE", PLACE),
        "majors": MAJORS,
    }
    host.exec(["mkdir", "-p", PLACE])
    for file, text in files.items():
        host.exec(["tee", f"{PLACE}/{file}"], input=text)
    nodes = ["nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(len(gpus)))]
    host.exec(["sh", "-ec", SET_UP, "sh", PLACE, *nodes])


def restore(host: BedHost, unit: str) -> None:
    """Take it all away again."""
    host.exec(["sh", "-c", TAKE_DOWN, "sh", unit])
