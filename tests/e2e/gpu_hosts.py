"""A test host that looks like a recorded GPU host: its nvidia-smi, device nodes and their groups.

Device nodes are real ones of another kind under NVIDIA's names, and the list of the kernel's device
groups says so; everything else of the host is as it is.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import CHECKOUT
from tests.e2e.deployment import CONTROL, Deployment, eventually
from tests.unit.gguf.support import SMALL, write_model

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


class Site:
    """An inventory with a profile that ships, and what a test host must have otherwise."""

    def __init__(self, folder: Path, bed: Bed) -> None:
        self.deployment = Deployment(folder, bed)
        model = self.deployment.model
        (model / "model.safetensors").unlink()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (model / name).write_text("{}\n")
        # Large enough for eight GPUs to share; the file takes no room.
        shape = replace(SMALL, heads=8, context=202752)
        first = write_model(model, shape, split=2)[0]
        self.vars: dict[str, Any] = {"gguf": first.name}
        self.override: dict[str, Any] = {
            "model": {"source": "model"},
            "engine": {"lock": "lock.txt", "python": "3.11", "kernel": False},
            "serve": {"args": {
                "control": CONTROL, "kernel-line": True, "backend": "TRITON_MLA_SPARSE"
            }},
            # A test host's own limit is lower than what vLLM wants.
            "unit": {"nofile": 16384},
            "secrets": {"VLLM_API_KEY": "${env:FAKE_KEY}"},
            "needs": {"compiler": False, "libraries": [], "disk_gib": 0.1, "memory_gib": 0.1},
            "limits": {"load": 20, "smoke": 60, "stop": 10},
            "smoke": {"expect": [{"prompt": "count", "max_tokens": 3, "text": " one two three"}]},
        }  # fmt: skip

    def write(self) -> Path:
        path = self.deployment.write()
        document = yaml.safe_load(path.read_text())
        host = document["hosts"]["node1"]
        host |= {"profile": "glm-5", "vars": self.vars, "override": self.override}
        document["defaults"].pop("profile", None)
        document["profiles"] = []
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path


OPEN_LOG = r"""
rm -f "$1" /run/systemd/journal/kernel-seqnum; mkfifo "$1"; ln -sf "$1" /dev/kmsg
systemd-run --quiet --unit=hold-kmsg -- sh -c 'exec 3<>"$1"; exec sleep infinity' sh "$1"
until ls -l "/proc/$(systemctl show -p MainPID --value hold-kmsg)/fd/3" 2>/dev/null |
    grep -q "$1"; do sleep 0.1; done
systemctl restart systemd-journald
"""
CLOSE_LOG = r"""
rm -f /dev/kmsg "$1"; systemctl stop hold-kmsg 2>/dev/null; systemctl restart systemd-journald
"""


class KernelLog:
    """The kernel's log of a test host, which as a container has none.

    /dev/kmsg is a pipe: systemd's own journald reads records from it as it reads the kernel's, and
    journalctl shows them as such. Something keeps the pipe open, since who writes to one waits for
    a reader.
    """

    PIPE = "/run/kmsg-of-the-test"

    def __init__(self, host: BedHost) -> None:
        self.host, self.number = host, 0

    def open(self) -> None:
        self.host.exec(["sh", "-ec", OPEN_LOG, "sh", self.PIPE])
        self.say("Linux version 6.8.0-48-generic")

    def say(self, text: str) -> None:
        """Log a line, now by the host's clock."""
        uptime = float(self.host.exec(["cat", "/proc/uptime"]).stdout.split()[0])
        record = f"4,{self.number},{round(uptime * 1e6)},-;{text}\n"
        self.number += 1
        self.host.exec(["tee", self.PIPE], input=record)
        eventually(lambda: text in self.host.exec(["journalctl", "--dmesg", "-o", "cat"]).stdout)

    def close(self) -> None:
        self.host.exec(["sh", "-c", CLOSE_LOG, "sh", self.PIPE])


def wear_out(host: BedHost, gpu: int, errors: int) -> None:
    """Give a GPU uncorrected ECC errors, whether it serves or not."""
    for kind in ("idle", "serving"):
        said = json.loads(host.exec(["cat", f"{PLACE}/{kind}.json"]).stdout)
        said["gpus"][gpu]["ecc.errors.uncorrected.volatile.total"] = errors
        host.exec(["tee", f"{PLACE}/{kind}.json"], input=json.dumps(said))
