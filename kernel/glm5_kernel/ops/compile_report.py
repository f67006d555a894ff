"""Compile the sparse MLA kernel for GPUs that are not there, and report what it needs of them.

    python -m glm5_kernel.ops.compile_report            # print the table
    python -m glm5_kernel.ops.compile_report docs/kernels.md    # put it into the docs

ptxas and cuobjdump come with Triton; no GPU is needed.
"""
# mypy: disable-error-code="no-untyped-call, import-untyped, import-not-found"

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glm5_kernel.ops.configs import RESERVED, SHARED, SHARED_LIMIT, TABLES, Config, Kv
from glm5_kernel.ops.split import signature, split_kernel

REGISTERS = 65_536
"""32-bit registers of a multiprocessor."""
START, END = "<!-- resources: start -->", "<!-- resources: end -->"


@dataclass(frozen=True)
class Case:
    """One compilation of the kernel.

    Attributes:
        spans: whether a program's share may end in one token and begin in another.
        block_table: whether request-local positions are translated; with `lengths`, as vLLM calls.
    """

    arch: str
    kv: Kv
    config: Config
    spans: bool = False
    block_table: bool = False


@dataclass(frozen=True)
class Resources:
    """What ptxas says, and the programs that fit on a multiprocessor."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    resident: int


def cases(arch: str) -> list[Case]:
    """Every configuration of an architecture's tables, in each form it is used in."""
    return [
        Case(arch, kv, config, spans, block_table)
        for kv, table in TABLES[arch].items()
        for config in dict.fromkeys(row.config for row in table.rows)
        for spans in ((False, True) if config == table.general else (False,))
        for block_table in (False, True)
    ]


def compile_case(case: Case) -> Resources:
    """Compile for bf16 queries, 512 + 64 dims and blocks of 64."""
    capability = int(case.arch.removeprefix("sm"))
    compiled = _compile(case, capability)
    usage = _resource_usage(compiled.asm["cubin"])
    registers, stack = (int(re.search(f"{key}:(\\d+)", usage)[1]) for key in ("REG", "STACK"))  # type: ignore[index]
    shared = compiled.metadata.shared
    threads = 32 * case.config.warps
    by_registers = REGISTERS // (-(-registers // 8) * 8 * threads)
    by_shared = SHARED[case.arch] // (shared + RESERVED)
    return Resources(registers, stack, shared, min(by_registers, by_shared))


def _compile(case: Case, capability: int) -> Any:  # noqa: ANN401
    fp8 = case.kv == "fp8"
    pdl = capability >= 90
    constants = {
        "D": 512,
        "R": 64,
        "HB": case.config.heads,
        "BN": case.config.tile,
        "BLOCK": 64,
        "FLAT": True,
        "FP8": fp8,
        "NATIVE": capability >= 89,
        "USE_TABLE": case.block_table,
        "USE_LENGTH": case.block_table,
        "Q_ALIGN": 8,
        "KV_ALIGN": 16 if fp8 else 8,
        "SPAN": case.spans,
        "PDL": pdl,
    }
    names = split_kernel.arg_names
    types = signature("bf16", "u8" if fp8 else "bf16") | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n.startswith("p_")}
    source = ASTSource(
        split_kernel,
        {name: types[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        aligned,
    )
    options = {"num_warps": case.config.warps, "num_stages": case.config.stages, "launch_pdl": pdl}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _resource_usage(cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def report(archs: list[str], workers: int = 2) -> str:
    """A Markdown table of all cases."""
    chosen = [case for arch in archs for case in cases(arch)]
    lines = [
        "| GPU | KV | heads × tile, warps, stages | form | registers | stack, B | shared memory, B "
        "(limit) | programs a multiprocessor |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    with ProcessPoolExecutor(workers) as pool:
        for case, needs in zip(chosen, pool.map(compile_case, chosen), strict=True):
            lines.append(_line(case, needs))
    return "\n".join(lines)


def _line(case: Case, needs: Resources) -> str:
    c = case.config
    form = "block table" if case.block_table else "slots"
    cells = [
        case.arch.upper(),
        "fp8_ds_mla" if case.kv == "fp8" else "bf16",
        f"{c.heads} × {c.tile}, {c.warps}, {c.stages}",
        form + (", spanning" if case.spans else ""),
        str(needs.registers),
        str(needs.stack_bytes),
        f"{needs.shared_bytes:,} ({SHARED_LIMIT[case.arch]:,})",
        f"{needs.resident} ({needs.resident * c.warps} warps)",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path, nargs="?", help="put the table into this page instead")
    page = parser.parse_args().page
    text = report(["sm120", "sm90", "sm100", "sm89", "sm86", "sm80"])
    if page is None:
        print(text)
        return
    before, rest = page.read_text().split(START)
    after = rest.split(END)[1]
    page.write_text(f"{before}{START}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
