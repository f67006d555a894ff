"""Output → fact, each case a file of data in facts/."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest
from glm5_deploy.hosts.facts.fact import FactOutput
from glm5_deploy.hosts.facts.gpu import parse_gpus
from glm5_deploy.hosts.facts.gpu_host import parse_limits, pci_address
from glm5_deploy.hosts.facts.ports import parse_ports
from glm5_deploy.hosts.facts.python import parse_pythons
from glm5_deploy.hosts.facts.system import (
    parse_disks,
    parse_libraries,
    parse_machine,
    parse_os,
    parse_sudo,
    parse_systemd,
    parse_tools,
)
from glm5_deploy.hosts.facts.unit import parse_unit

PARSERS: dict[str, Callable[[FactOutput], Any]] = {
    "disks": parse_disks,
    "gpus": parse_gpus,
    "libraries": parse_libraries,
    "limits": parse_limits,
    "machine": parse_machine,
    "os": parse_os,
    "ports": parse_ports,
    "pythons": parse_pythons,
    "sudo": parse_sudo,
    "systemd": parse_systemd,
    "tools": parse_tools,
    "unit": parse_unit,
}
CASES = sorted(Path(__file__).parent.glob("facts/*.json"))


def plain(value: Any) -> Any:  # noqa: ANN401
    """A fact as JSON would have it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    return str(value) if isinstance(value, PurePath) else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_output_becomes_a_fact(case: Path) -> None:
    data = json.loads(case.read_text())
    stdout = "\n".join(data["stdout"]) + "\n" if data["stdout"] else ""
    output = FactOutput(data.get("returncode", 0), stdout, data.get("stderr", ""))
    assert plain(PARSERS[data["fact"]](output)) == data["expected"]


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_survives_nothing_and_garbage(name: str) -> None:
    """A host may lack the program, or say something that nobody foresaw."""
    for text in ("", "\n", "x", "a b c d e f g\n1 2 3 4 5 6 7\n", "=\n==\n", "\ufffd\0\n\n"):
        for returncode in (0, 1, 124, 127):
            PARSERS[name](FactOutput(returncode, text, "sh: not found"))


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:3B:00.0", (0, 0x3B, 0)), ("0000:3b:00", (0, 0x3B, 0)), ("[N/A]", ()), ("", ())],
)
def test_pci_addresses(text: str, address: tuple[int, ...]) -> None:
    assert pci_address(text) == address


def test_every_parser_has_cases() -> None:
    assert {json.loads(case.read_text())["fact"] for case in CASES} == set(PARSERS)
