"""docs/blackwell.md, walked through line by line on a test host that looks like the page's.

Every ``$ glm5-deploy`` line runs in its order, with the exit code that the page shows, and every
line that is shown comes (figures and spacing aside). Lines with … are shortened, and not compared.
What a test host lacks is put into the inventory after ``init`` has written it: the scripted server
in the place of vLLM, and little ones of the profile's needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from glm5_deploy.demo.bed import Bed, BedHost

from tests.e2e.conftest import CHECKOUT, Cli, CliResult
from tests.e2e.deployment import CONTROL, Deployment, set_faults
from tests.e2e.gpu_hosts import become, restore
from tests.unit.gguf.support import GLM5, SMALL, write_model

PAGE = CHECKOUT / "docs" / "blackwell.md"
UNIT = "glm5-glm-5.service"
MODEL = "/srv/models/glm-5"
SHARDS = 11
EXIT = re.compile(r"\[exit (\d+)\]")


@dataclass
class Shown:
    """A command of the page, and what is shown below it."""

    command: str
    lines: list[str]

    @property
    def exit_code(self) -> int:
        found = [EXIT.fullmatch(line.strip()) for line in self.lines]
        return next((int(code[1]) for code in found if code), 0)


def shown_commands(text: str) -> list[Shown]:
    """All of the page's console blocks; a command may go on after a backslash."""
    commands: list[Shown] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                commands.append(Shown(line[2:], []))
            else:
                commands[-1].lines.append(line)
    return commands


def plain(text: str) -> str:
    """Without figures, rules and spacing."""
    return " ".join(re.sub(r"\b[0-9a-f]{12}\b|[─✗±!]|[\d.,]+", " ", text).split())


def compare(shown: Shown, done: CliResult) -> None:
    """Every line that is shown whole must have come."""
    said = plain(done.output)
    for line in shown.lines:
        if "…" not in line and not EXIT.fullmatch(line.strip()):
            assert plain(line) in said, f"{shown.command}: not said: {line}\n{done.output}"


class Walk:
    """What happens beside the page: the host, its model, what a test host lacks."""

    def __init__(self, folder: Path, bed: Bed, host: BedHost) -> None:
        self.deployment, self.bed, self.host = Deployment(folder, bed), bed, host
        self.served = False

    def adapt(self, inventory: Path) -> None:
        """Make the inventory that ``init`` wrote one of the test host."""
        document = yaml.safe_load(inventory.read_text())
        folder = self.deployment.folder
        document["hosts"]["bw1"] = {
            "connection": self.bed.connection("node1"),
            "wheelhouse": str(folder / "wheels"),
            "override": {
                "engine": {"lock": str(folder / "lock.txt"), "python": "3.11", "kernel": False},
                "serve": {"args": {"control": CONTROL, "kernel-line": True}},
                "needs": {"compiler": False, "libraries": [], "disk_gib": 0.1, "memory_gib": 0.1},
                "unit": {"nofile": 16384},
                "limits": {"load": 30, "smoke": 120, "stop": 10},
                "smoke": {"expect": [{"prompt": "count", "max_tokens": 2, "contains": "one"}]},
            },
        }
        inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def put_model(self, whole: bool) -> None:
        """Files of GLM-5's own dimensions, empty of data, or of a small one that can be hashed."""
        local = self.host.root / MODEL.removeprefix("/")
        self.host.exec(["rm", "-rf", MODEL])
        self.host.exec(["mkdir", "-p", MODEL])
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            self.host.exec(["tee", f"{MODEL}/{name}"], input="{}\n")
        shape = GLM5 if whole else replace(SMALL, heads=8, context=202752)
        quant = "Q4_K" if whole else "Q8_0"
        for path in write_model(local, shape, quant=quant, split=SHARDS):
            path.rename(path.with_name(path.name.replace("m-", "GLM-5-Q4_K_M-")))


@pytest.fixture
def walk(tmp_path: Path, bed: Bed, fresh_host: BedHost) -> Iterator[Walk]:
    set_faults(fresh_host)
    become(fresh_host, "rtx-pro-6000-x8", UNIT)
    yield Walk(tmp_path / "site", bed, fresh_host)
    restore(fresh_host, UNIT)
    fresh_host.exec(["rm", "-rf", MODEL])


def test_the_page(walk: Walk, cli: Cli) -> None:
    commands = [each for each in shown_commands(PAGE.read_text()) if "glm5-deploy" in each.command]
    assert len(commands) >= 8
    assert commands[0].command.startswith("glm5-deploy init")
    for shown in commands:
        words = shlex.split(shown.command)
        assert words[0] == "glm5-deploy"
        if words[1] == "up" and not walk.served:
            walk.put_model(whole=False)
            walk.served = True
        done = cli(*words[1:], expect=shown.exit_code, env={"COLUMNS": "100"})
        compare(shown, done)
        if words[1] == "init":
            walk.adapt(cli.home / "inventory.yml")
        if words[1] == "preflight" and shown.exit_code:
            walk.put_model(whole=True)
