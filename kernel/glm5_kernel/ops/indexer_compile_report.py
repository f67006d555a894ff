"""Compile the indexer's kernels for GPUs that are not there, and report what they need of them.

python -m glm5_kernel.ops.indexer_compile_report    # print the table
"""
# mypy: disable-error-code="no-untyped-call, import-untyped, import-not-found"

from __future__ import annotations

import argparse
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glm5_kernel.ops.compile_report import _resource_usage
from glm5_kernel.ops.configs import SHARED_LIMIT
from glm5_kernel.ops.indexer_configs import (
    PAGED,
    PREFILL,
    TOPK,
    PagedConfig,
    PrefillConfig,
    ShortTopkConfig,
    TopkConfig,
)
from glm5_kernel.ops.indexer_logits import (
    PAGED_ARGUMENTS,
    PREFILL_ARGUMENTS,
    paged_kernel,
    prefill_kernel,
)
from glm5_kernel.ops.topk_kernel import signature, topk_kernel
from glm5_kernel.ops.topk_short import short_topk_kernel
from glm5_kernel.ops.topk_short import signature as short_signature

Config = PagedConfig | PrefillConfig | ShortTopkConfig | TopkConfig
HEADS = 32


@dataclass(frozen=True)
class Case:
    """One compilation.

    Attributes:
        form: paged logits: query tokens of a request; top-k: "rows" as in prefill, or "decode":
            rows that start at 0, with "split " before it where programs share a row.
    """

    arch: str
    config: Config
    form: str = ""


@dataclass(frozen=True)
class Needs:
    """What ptxas says.

    Attributes:
        conversions: how often Triton passes a tensor through shared memory to spread it otherwise.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    conversions: int


def cases(arch: str) -> list[Case]:
    """Every configuration of an architecture's tables, in the forms that serving uses."""
    found = [Case(arch, config, n) for config in PAGED[arch] for n in ("1", "4")]
    found.append(Case(arch, PREFILL[arch]))
    table = TOPK[arch]
    for form in ("rows", "decode"):
        found += [Case(arch, config, form) for config in table.short]
        found += [Case(arch, config, f"split {form}") for config in table.few]
        found.append(Case(arch, table.many, form))
    return list(dict.fromkeys(found))


def compile_case(case: Case) -> Needs:
    """Compile for 32 heads of 128 dims and a context of 128 k."""
    kernel, types, constants = _source(case)
    capability = int(case.arch.removeprefix("sm"))
    constants["PDL"] = capability >= 90
    names = kernel.arg_names
    types = types | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n.startswith("p_")}
    source = ASTSource(
        kernel,
        {name: types[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        aligned,
    )
    options: dict[str, Any] = {"num_warps": case.config.warps, "launch_pdl": capability >= 90}
    if isinstance(case.config, TopkConfig):
        options["maxnreg"] = case.config.registers
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    usage = _resource_usage(compiled.asm["cubin"])
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
    # Triton's own is dynamic; histograms are static.
    shared = compiled.metadata.shared + found["SHARED"]
    conversions = compiled.asm["ttgir"].count("ttg.convert_layout")
    return Needs(found["REG"], found["STACK"], shared, conversions)


def _source(case: Case) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """Kernel, types of its arguments, and constants."""
    config = case.config
    if isinstance(config, TopkConfig | ShortTopkConfig):
        constants = {
            "KB": 2048, "ROOM": config.room, "WARPS": config.warps,
            "USE_START": case.form.endswith("rows"), "LAST_ONLY": False,
        }  # fmt: skip
        if isinstance(config, ShortTopkConfig):
            return short_topk_kernel, short_signature(), constants
        constants |= {
            "SAMPLE": config.sample(131_072), "HELD": config.held, "LIST": config.list,
            "TILE": config.tile, "SPLIT": case.form.startswith("split"),
        }  # fmt: skip
        return topk_kernel, signature(), constants
    floats = dict.fromkeys(("p_weight", "p_out", "p_scale"), "*fp32")
    pointers = floats | dict.fromkeys(("p_q", "p_kv", "p_k"), "*fp8e4nv")
    pointers |= dict.fromkeys(("p_length", "p_table", "p_start", "p_end"), "*i32")
    constants = {"D": 128, "HB": HEADS, "BN": config.tile, "STAGES": config.stages, "Q_ALIGN": 16}
    if isinstance(config, PagedConfig):
        constants |= {"NJ": int(case.form), "LAST_ONLY": False, "KV_ALIGN": 16}
        return paged_kernel, pointers | dict.fromkeys(PAGED_ARGUMENTS, "i32"), constants
    constants |= {"NJ": config.columns // HEADS, "BM": config.rows, "K_ALIGN": 16}
    return prefill_kernel, pointers | dict.fromkeys(PREFILL_ARGUMENTS, "i32"), constants


def report(archs: list[str], workers: int = 2) -> str:
    """A Markdown table of all cases."""
    chosen = [case for arch in archs for case in cases(arch)]
    lines = [
        "| GPU | kernel | configuration | registers | stack, B | shared memory, B (limit) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with ProcessPoolExecutor(workers) as pool:
        for case, needs in zip(chosen, pool.map(compile_case, chosen), strict=True):
            lines.append(_line(case, needs))
    return "\n".join(lines)


def _line(case: Case, needs: Needs) -> str:
    config = case.config
    size = "room" if isinstance(config, ShortTopkConfig) else "tile"
    what = f"{size} {getattr(config, size)}, {config.warps} warps"
    if isinstance(config, TopkConfig | ShortTopkConfig):
        name = f"top-k, {case.form}"
    elif isinstance(config, PagedConfig):
        name, what = f"paged logits, {case.form} token(s)", f"{what}, {config.stages} stages"
    else:
        name, what = "prefill logits", f"{what}, {config.stages} stages"
    shared = f"{needs.shared_bytes:,} ({SHARED_LIMIT[case.arch]:,})"
    cells = [case.arch.upper(), name, what, str(needs.registers), str(needs.stack_bytes), shared]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    print(report(["sm120", "sm90", "sm100", "sm89"]))
