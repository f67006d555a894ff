"""Which attention backend, KV cache and indexer a server uses, by its own log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from glm5_deploy.errors import CommandFailedError, SudoRefusedError
from glm5_deploy.hosts.command import Command, script
from glm5_deploy.hosts.host import Host

# What vLLM 0.26 to 0.33 print: an automatic choice, a choice by flag, and the CPU's MLA choice.
_VLLM = re.compile(
    r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]*)"
    r"(?: attention backend out of| backend\.\s*$)"
)
_KERNEL = re.compile(r"glm5_kernel: attention=(\S+) kv=(\S+) indexer=(\S+)")
_FILTER = r"Using .* backend|glm5_kernel: attention="

# The messages of the unit's present start alone: an earlier start may have chosen otherwise.
_READ = (
    'id=$(systemctl show --property=InvocationID --value -- "$1") && [ -n "$id" ] && '
    'exec journalctl --all --quiet --no-pager --output=cat --grep="$2" "_SYSTEMD_INVOCATION_ID=$id"'
)


@dataclass(frozen=True)
class Backends:
    """What the log names, in order of appearance, each once.

    Args:
        vllm: attention backends by vLLM's lines.
        kernel: (attention, kv, indexer) by glm5-kernel's lines.
    """

    vllm: tuple[str, ...] = ()
    kernel: tuple[tuple[str, str, str], ...] = ()

    @property
    def attention(self) -> tuple[str, ...]:
        """All names: glm5-kernel's where it reports, else vLLM's."""
        return tuple(dict.fromkeys(row[0] for row in self.kernel)) or self.vllm

    def describe(self) -> str:
        if self.kernel:
            return "; ".join(
                f"attention={a} kv={kv} indexer={indexer}" for a, kv, indexer in self.kernel
            )
        return ", ".join(self.vllm) or "none named"


def parse_backends(lines: Iterable[str]) -> Backends:
    """Read the names from log lines."""
    vllm: list[str] = []
    kernel: list[tuple[str, str, str]] = []
    for line in lines:
        if found := _KERNEL.search(line):
            kernel.append((found[1], found[2], found[3]))
        elif found := _VLLM.search(line):
            vllm.append(found[1])
    return Backends(tuple(dict.fromkeys(vllm)), tuple(dict.fromkeys(kernel)))


@dataclass(frozen=True)
class Expected:
    """What the profile wants the log to say; None where it does not care."""

    attention: str | None = None
    kv: str | None = None
    indexer: str | None = None

    def __bool__(self) -> bool:
        return any((self.attention, self.kv, self.indexer))

    def describe(self) -> str:
        named = {"attention": self.attention, "kv": self.kv, "indexer": self.indexer}
        if named["kv"] is None and named["indexer"] is None:
            return str(self.attention)
        return " ".join(f"{name}={value}" for name, value in named.items() if value)


def difference(wanted: Expected, found: Backends) -> str | None:
    """What to do about the first thing that is not as expected; None where all is.

    KV cache and indexer are told by glm5-kernel alone.
    """
    if wanted.attention is not None and not matches(wanted.attention, found):
        return (
            "choose it with attention-backend in serve.args, or, if the other one is right, "
            "write that into smoke.attention_backend"
        )
    if (wanted.kv or wanted.indexer) and not found.kernel:
        return "glm5-kernel has not reported: set engine.kernel, and see the doctor's row"
    if wanted.kv is not None and {kv for _, kv, _ in found.kernel} != {wanted.kv}:
        return (
            "set kv-cache-dtype in serve.args (auto is the model's dtype), or write what is right "
            "into smoke.kv_cache"
        )
    if wanted.indexer is not None and {each for *_, each in found.kernel} != {wanted.indexer}:
        return "set GLM5_INDEXER in environment, or write what is right into smoke.indexer"
    return None


def matches(expected: str, found: Backends) -> bool:
    """Whether every attention name of the log is the expected one, regardless of case.

    Where glm5-kernel reports, vLLM's name for the slot it took (CUSTOM) may be expected as well.
    """
    wanted = expected.removeprefix("AttentionBackendEnum.").upper()
    names = {name.upper() for name in found.attention}
    return names == {wanted} or (bool(found.kernel) and {n.upper() for n in found.vllm} == {wanted})


def read_backends(host: Host, unit: str) -> Backends | None:
    """The names in the journal of the unit's present start; None where it cannot be read."""
    found = _run(host, script(_READ, unit, _FILTER))
    return None if found is None else parse_backends(found.splitlines())


def _run(host: Host, read: Command) -> str | None:
    for sudo in (True, False):
        try:
            result = host.run(read, sudo=sudo, check=False, timeout=60.0)
        except SudoRefusedError:
            continue
        except CommandFailedError:
            return None
        # Status 1 is journalctl's "nothing matched"; the hint about groups comes on stderr.
        return result.stdout if sudo or result.ok else None
    return None
