"""The plan of a session on a GPU machine (tests/gpu/README.md): its commands run as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.gpu.gguf_serve import run as gguf
from tests.gpu.host import run as host
from tests.gpu.serve import run as serve

GPU = Path(__file__).parents[1] / "gpu"
LONGEST = 2000  # characters of a command
README = (GPU / "README.md").read_text()
PARTS = set(re.findall(r"^  ([a-z0-9-]+)\) ?", (GPU / "part.sh").read_text(), re.MULTILINE))
STATED = re.findall(r"^#   ((?:[a-z0-9-]+, )*[a-z0-9-]+)  ", (GPU / "part.sh").read_text(), re.M)
BLOCKS = [
    re.sub(r"^    ", "", block, flags=re.MULTILINE).strip()
    for block in re.findall(r"(?<=\n\n)(?:    .*\n)+", README)
    if "part.sh" in block
]
COMMANDS = [*BLOCKS, *re.findall(r"`(bash (?:build|/tmp)[^`]+)`", README)]
# Program and the arguments that part.sh gives it, by the part.
PARSERS = {"gguf": gguf.parse, "host": host.parse, "host-tp2": host.parse, "parity": serve.parse}


def words(part: str, command: str) -> list[list[str]]:
    """Arguments of every use of a part, its seconds first."""
    found = re.findall(rf"(?:\$P|part\.sh|late) {part}(?![\w-])((?: [^\s;&)]+)*)", command)
    return [each.split() for each in found]


def used(command: str) -> list[str]:
    return re.findall(r"(?:\$P|part\.sh|late) ([a-z0-9-]+)", command)


def test_there_is_a_plan() -> None:
    assert len(COMMANDS) == 15
    assert {part for names in STATED for part in names.split(", ")} == PARTS


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_can_be_run(command: str) -> None:
    assert len(command) <= LONGEST
    subprocess.run(["bash", "-n", "-c", command], check=True)
    assert set(used(command)) <= PARTS
    for part, parse in PARSERS.items():
        for seconds, *given in words(part, command):
            assert 0 < int(seconds) < 800
            parse(["--out", "x", *given])


def test_the_plans_bring_what_is_wanted() -> None:
    wanted = {"model", "measured", "host", "parity", "gguf", "warmup", "served", "sweep"}
    several, one = README.split("## On one H200")
    assert {*wanted, "host-tp2", "serve-tp2", "kernels"} <= set(used(several))
    assert wanted <= {*used(one), "model"}
    (given,) = words("gguf", next(each for each in COMMANDS if "zero()" in each))
    options = gguf.parse(given[1:])
    assert options.only == ["q8_0-mtp", "5.2-mtp"]
    assert (GPU.parents[1] / options.results).is_file()
