"""Numbers that are none: characters which `str.isdigit` or `int` takes for digits, and too many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
from glm5_deploy.bench.plan import parse_numbers
from glm5_deploy.config.address import parse_address
from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.models import Engine
from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import UsageError
from glm5_deploy.hosts.facts.fact import FactOutput, split
from glm5_deploy.hosts.facts.gpu import NEWER_FIELDS, PLAIN_FIELDS, GpuFacts, parse_gpus
from glm5_deploy.hosts.facts.gpu_host import (
    Devices,
    parse_devices,
    parse_limits,
    parse_processes,
)
from glm5_deploy.hosts.facts.system import parse_machine
from glm5_deploy.hosts.facts.unit import parse_unit
from glm5_deploy.hosts.fake import FakeHost
from glm5_deploy.hosts.known_hosts import lookup_names
from glm5_deploy.hosts.peer import Peer
from glm5_deploy.hosts.ssh_config import parse_hop
from glm5_deploy.run.fanout import batches
from glm5_deploy.run.lock import Holder, parse_holder
from glm5_deploy.run.peer import _address
from glm5_deploy.stages.cuda import numbers
from glm5_deploy.stages.observed import Incumbent, parse_incumbent, parse_tree
from glm5_deploy.status.probe import parse_gpu
from glm5_kernel.doctor import environment
from pydantic import ValidationError

PEER = Peer(FakeHost("bw0", "deploy"), "192.0.2.1", 2222, PurePosixPath("/opt/glm5"))

NONE = ["²", "٣", "１", "1²", "", "+1", "-", "1_0", "9" * 5000]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), (str(2**64), 2**64), *((text, None) for text in NONE)],
)
def test_natural_numbers(text: str, number: int | None) -> None:
    assert natural(text) == number


HEAD = [*PLAIN_FIELDS, *NEWER_FIELDS]


def table(**cells: str) -> FactOutput:
    row = [cells.get(title, "0") for title in HEAD]
    return out(",".join(HEAD) + "\n" + ",".join(row) + "\n")


def out(text: str) -> FactOutput:
    return FactOutput(0, text, "")


def gpu(text: str, field: str) -> object:
    """What is read of a table with this text in a field."""
    (found,) = parse_gpus(table(**{field: text})).gpus
    return {"memory.used": found.memory_used, "pcie.link.width.max": found.lanes}.get(
        field, found.ecc_errors
    )


PARSERS: dict[str, tuple[Callable[[str], object], object]] = {
    "facts": (lambda text: split(f"\nm out\n\nm err {text}\n\nm end\n", "m"), []),
    "GPU's index": (
        lambda text: parse_gpus(table(index=text)).gpus, GpuFacts().gpus,
    ),
    "GPU's memory": (lambda text: gpu(text, "memory.used"), 0),
    "GPU's lanes": (lambda text: gpu(text, "pcie.link.width.max"), None),
    "GPU's errors": (lambda text: gpu(text, "ecc.errors.uncorrected.volatile.total"), None),
    "GPU's process": (lambda text: parse_processes(out(f"u|GPU-1,{text},5,python")), ()),
    "GPU's process's memory": (
        lambda text: parse_processes(out(f"u|GPU-1,5,{text},python"))[0].memory, None,
    ),
    "devices": (
        lambda text: parse_devices(out(f"{text} nvidia\n--- nodes\n--- groups\n")),
        Devices({}, (), ()),
    ),
    "limits": (lambda text: parse_limits(out(f"nr_open={text}\n")).open_files, None),
    "machine": (lambda text: parse_machine(out(f"MemTotal={text}\n")).memory_total, 0),
    "unit": (lambda text: parse_unit(out(f"MainPID={text}\n")).main_pid, 0),
    "incumbent": (
        lambda text: parse_incumbent(out(f"Unit=u\nMainPID={text}\n")), Incumbent("u", False, 0),
    ),
    "tree": (lambda text: parse_tree(out(f"{text} 1.5 1.5 7 name\n")), {}),
    "lock": (lambda text: parse_holder(f"{text}\ntok 99\n"), Holder("tok", 0, {})),
    "late lock": (lambda text: parse_holder(f"-{text}\ntok 99\n"), Holder("tok", 0, {})),
    "status": (lambda text: parse_gpu(f"{text}, name, 1, 2, 3"), None),
    "driver": (lambda text: numbers(f"580.{text}"), (580,)),
}  # fmt: skip


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize("name", PARSERS)
def test_what_a_host_says_is_passed_over(name: str, text: str) -> None:
    parse, expected = PARSERS[name]
    assert parse(text) == expected


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize(
    ("parse", "error"),
    [
        (lambda text: batches(3, text), UsageError),
        (lambda text: batches(3, f"{text}%"), UsageError),
        (lambda text: parse_numbers("--concurrency", text), UsageError),
        (lambda text: parse_hop(f"host:{text or 'x'}"), UsageError),
        (lambda text: parse_address(f"root@host:{text}"), ConfigErrors),
    ],
)
def test_what_a_user_writes_is_refused(
    parse: Callable[[str], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error):
        parse(text)


@pytest.mark.parametrize("text", ["²", "٣", "１"])
def test_a_python_is_named_in_plain_digits(text: str) -> None:
    with pytest.raises(ValidationError):
        Engine(python=f"3.{text}")


@pytest.mark.parametrize("text", ["²", "٣"])
def test_a_port_that_is_none_is_part_of_the_name(text: str) -> None:
    assert _address(f"storage:{text}", PEER) == (f"storage:{text}", 22)
    assert lookup_names(f"[host]:{text}") == (f"[host]:{text}",)


@pytest.mark.parametrize("text", ["²", "٣"])
def test_the_doctor_passes_over_it_too(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(
        environment, "_nvidia_smi", lambda _fields: [["GPU-a", text], ["GPU-b", "1"]]
    )
    assert environment.free_memory() == {"b": 1 << 20}
