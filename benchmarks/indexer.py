"""Speed of the DSA indexer's kernels beside their peers, in one run on one CUDA device.

    python benchmarks/indexer.py --output benchmarks/results/indexer-h200.json
    python benchmarks/indexer.py --show benchmarks/results/indexer-h200.json --page docs/kernels.md

The peers are those of an installed vLLM: DeepGEMM's logits, and the top-k operators of its compiled
extension. Without vLLM only our rows are measured.

A figure is the median over replays of a CUDA graph that holds one call for each of several random
input sets, divided by their number, and of these the median over rounds, each with inputs of its
own. 32 heads of 128 dims, blocks of 64 tokens, top-k 2048; scores to select from are those of
random queries and keys. `context` is also the width of the logits.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "kernel"), str(ROOT / "benchmarks")]

from sparse_mla import about, ceilings, has_vllm, time_us  # noqa: E402
from tables import put_between  # noqa: E402
from tables import rows as markdown  # noqa: E402

HEADS, DIM, PAGE, TOPK = 32, 128, 64, 2048
DECODE = [(b, c) for c in (4096, 32_768, 131_072) for b in (1, 8, 64)]
PREFILL = [(2048, 8192), (4096, 32_768)]

Call = Callable[[int], object]


class Aim(NamedTuple):
    """At most `ratio` times the fastest of the peers."""

    ratio: float
    peers: tuple[str, ...]


AIMS: dict[str, tuple[Aim, ...]] = {
    "paged_logits": (Aim(1.2, ("deepgemm",)),),
    "prefill_logits": (Aim(1.5, ("deepgemm",)),),
    "topk": (
        Aim(1.0, ("persistent_topk", "top_k_per_row_decode")),
        Aim(1.5, ("cooperative_topk",)),
    ),
    "logits+topk": (
        Aim(1.0, ("deepgemm+persistent_topk", "deepgemm+top_k_per_row_decode")),
        Aim(1.5, ("deepgemm+cooperative_topk",)),
    ),
}


def random_e4m3(*shape: int) -> Tensor:
    """Random values, made in pieces: float32 takes four times as much."""
    import torch

    out = torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")
    for part in out.flatten().split(1 << 28):
        part.copy_(torch.randn(part.shape, device="cuda"))
    return out


class Decode:
    """A batch of one-token requests whose pages lie anywhere in a pool, differently in each set."""

    def __init__(self, batch: int, context: int) -> None:
        import torch
        from glm5_kernel.ops.indexer_reference import pack_cache

        pages = context // PAGE
        blocks = max(2 * batch * pages, 8192)
        self.context = context
        self.sets = min(20, max(4, math.ceil(2e9 / (batch * context * 132))))
        scales = torch.rand(blocks, PAGE, device="cuda") + 0.5
        self.cache = pack_cache(random_e4m3(blocks, PAGE, DIM), scales)
        self.q = random_e4m3(batch, 1, HEADS, DIM)
        self.weights = torch.randn(batch, HEADS, device="cuda")
        self.lengths = torch.full((batch, 1), context, dtype=torch.int32, device="cuda")
        self.tables = [
            torch.randperm(blocks, device="cuda")[: batch * pages].view(batch, pages).int()
            for _ in range(self.sets)
        ]
        self.out = torch.empty(batch, context, device="cuda")
        self.indices = torch.empty(batch, TOPK, dtype=torch.int32, device="cuda")

    def ours(self) -> Call:
        from glm5_kernel.ops.indexer_logits import paged_mqa_logits

        return lambda i: paged_mqa_logits(
            self.q, self.cache, self.weights, self.lengths, self.tables[i],
            max_context=self.context, out=self.out,
        )  # fmt: skip

    def deepgemm(self) -> Call:
        import torch
        from vllm.third_party import deep_gemm

        processors = torch.cuda.get_device_properties(0).multi_processor_count
        plan = deep_gemm.get_paged_mqa_logits_metadata(self.lengths, PAGE, processors)
        cache = self.cache.unsqueeze(2)
        return lambda i: deep_gemm.fp8_fp4_paged_mqa_logits(
            (self.q, None), cache, self.weights, self.lengths, self.tables[i], plan, self.context,
            clean_logits=False,
        )  # fmt: skip


class Prefill:
    """The last chunk of one request's prompt."""

    def __init__(self, rows: int, context: int) -> None:
        import torch

        self.context, self.sets = context, 4
        self.qs = [random_e4m3(rows, HEADS, DIM) for _ in range(self.sets)]
        self.k = random_e4m3(context, DIM)
        self.scale = torch.rand(context, device="cuda") + 0.5
        self.weights = torch.randn(rows, HEADS, device="cuda")
        self.starts = torch.zeros(rows, dtype=torch.int32, device="cuda")
        self.ends = torch.arange(context - rows + 1, context + 1, device="cuda").int()
        self.out = torch.empty(rows, context, device="cuda")
        self.indices = torch.empty(rows, TOPK, dtype=torch.int32, device="cuda")

    def ours(self) -> Call:
        from glm5_kernel.ops.indexer_logits import mqa_logits

        return lambda i: mqa_logits(
            self.qs[i], self.k, self.scale, self.weights, self.starts, self.ends, out=self.out
        )

    def deepgemm(self) -> Call:
        from vllm.third_party import deep_gemm

        return lambda i: deep_gemm.fp8_fp4_mqa_logits(
            (self.qs[i], None), (self.k, self.scale), self.weights, self.starts, self.ends,
            clean_logits=False,
        )  # fmt: skip


Select = Callable[["Tensor"], object]


def selections(case: Decode | Prefill, peers: bool) -> Iterator[tuple[str, Select]]:
    """Top-k of one matrix of logits: ours, and what vLLM has for such rows."""
    import torch
    from glm5_kernel.ops.topk import topk_indices, workspace_bytes

    rows = case.indices.shape[0]
    space = torch.zeros(workspace_bytes(rows), dtype=torch.uint8, device="cuda")
    prefill = isinstance(case, Prefill)
    ends = case.ends if isinstance(case, Prefill) else case.lengths
    yield "ours", lambda x: topk_indices(x, TOPK, ends=ends, out=case.indices, workspace=space)
    if not peers:
        return
    import vllm._custom_ops  # noqa: F401  its import loads the operators

    ops, out = torch.ops._C, case.indices
    if prefill:
        yield "top_k_per_row_prefill", lambda x: ops.top_k_per_row_prefill(
            x, case.starts, ends, out, rows, x.stride(0), x.stride(1), TOPK  # type: ignore[union-attr]
        )  # fmt: skip
        return
    room = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    yield "persistent_topk", lambda x: ops.persistent_topk(x, ends, out, room, TOPK, x.shape[1])
    yield (
        "top_k_per_row_decode",
        lambda x: ops.top_k_per_row_decode(x, 1, ends, out, rows, x.stride(0), x.stride(1), TOPK),
    )
    if rows <= 32 and torch.cuda.get_device_capability()[0] in (9, 10):
        yield (
            "cooperative_topk",
            lambda x: ops.cooperative_topk(x, ends, out, room, TOPK, case.context),
        )


def measure_case(
    case: Decode | Prefill, op: str, replays: int, peers: bool
) -> dict[str, dict[str, float]]:
    """µs by operation and implementation; `op` is what the logits' rows are called."""
    logits = {"ours": case.ours()} | ({"deepgemm": case.deepgemm()} if peers else {})
    found: dict[str, dict[str, float]] = {name: {} for name in (op, "topk", "logits+topk")}
    for name, call in logits.items():
        found[op][name] = time_us(call, case.sets, replays)
    sets = min(case.sets, max(2, math.ceil(2e9 / case.out.nbytes)))
    matrices = []
    for i in range(sets):
        logits["ours"](i)
        matrices.append(case.out.clone())
    for name, select in selections(case, peers):
        found["topk"][name] = time_us(lambda i, s=select: s(matrices[i]), sets, replays)
        both = "ours" if name == "ours" else f"deepgemm+{name}"
        call = logits[both.split("+")[0]]
        if name == "ours":
            step = lambda i, c=call, s=select: (c(i), s(case.out))  # noqa: E731
        else:
            step = lambda i, c=call, s=select: s(c(i))  # noqa: E731
        found["logits+topk"][both] = time_us(step, case.sets, replays)
    return found


def floors(op: str, rows: int, context: int, bandwidth: float, rate: float) -> float:
    """µs that bytes and operations need at least; an e4m3 operation at half a bf16's time."""
    scores = rows * context
    operations = 0.0 if op == "topk" else 2.0 * scores * HEADS * DIM / (2 * rate)
    keys = {"paged_logits": 132 * scores, "prefill_logits": 132 * context}.get(op, 0)
    return 1e6 * max((4 * scores + keys) / bandwidth, operations)


def measure_rounds(
    make: Callable[[], Decode | Prefill], op: str, replays: int, peers: bool, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """µs of each round, by operation and implementation; a round's number is its inputs' seed."""
    import torch

    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        torch.manual_seed(number)
        for what, values in measure_case(make(), op, replays, peers).items():
            for impl, us in values.items():
                found.setdefault(what, {}).setdefault(impl, []).append(round(us, 2))
        torch.cuda.empty_cache()
    return found


def rows_of(
    found: dict[str, dict[str, list[float]]], shape: tuple[int, int], rates: tuple[float, float]
) -> list[dict[str, Any]]:
    """A row for each operation and implementation: the median of its rounds, and what bounds it."""
    rows = []
    for what, values in found.items():
        floor = None if what == "logits+topk" else floors(what, *shape, *rates)
        for impl, us in values.items():
            row = {"op": what, "batch": shape[0], "context": shape[1], "impl": impl}
            row |= {"us": statistics.median(us), "rounds": us}
            rows.append(row | ({"floor_us": round(floor, 2)} if floor else {}))
    return rows


def measure(replays: int, rounds: int) -> dict[str, Any]:
    """All implementations on all shapes."""
    peers, rates = has_vllm(), ceilings()
    rows: list[dict[str, Any]] = []
    for op, make, shapes in (
        ("paged_logits", Decode, DECODE),
        ("prefill_logits", Prefill, PREFILL),
    ):
        for shape in shapes:
            found = measure_rounds(functools.partial(make, *shape), op, replays, peers, rounds)
            rows += rows_of(found, shape, rates)
            print(*shape, found, flush=True)
    return {
        **about(),
        "method": (
            "median over rounds, each with random inputs of its own, of the median µs over replays "
            "of a CUDA graph of one call per input set, divided by their number"
        ),
        "ceilings": {"bytes_per_s": rates[0], "bf16_flop_per_s": rates[1]},
        "rows": rows,
    }


NAMES = {
    "paged_logits": "paged logits",
    "prefill_logits": "prefill logits",
    "topk": "top-k",
    "logits+topk": "logits and top-k",
}


def table(result: dict[str, Any]) -> str:
    """Markdown: our figures beside the peers', and what is to be kept of each aim."""
    body = []
    for op, title in NAMES.items():
        rows = [r for r in result["rows"] if r["op"] == op]
        for batch, context in dict.fromkeys((r["batch"], r["context"]) for r in rows):
            us = {
                r["impl"]: r["us"] for r in rows if (r["batch"], r["context"]) == (batch, context)
            }
            others = [f"{impl} {value:.1f}" for impl, value in us.items() if impl != "ours"]
            verdicts = [verdict(us, aim) for aim in AIMS[op]]
            body.append(
                [title, f"{batch:,}", f"{context:,}", f"{us['ours']:.1f}", ", ".join(others),
                 "; ".join(filter(None, verdicts)) or "–"]
            )  # fmt: skip
    return markdown(["", "rows", "context", "ours, µs", "peers, µs", "of the peer (aim)"], body)


def verdict(us: dict[str, float], aim: Aim) -> str:
    """Our time as a part of the best peer's, and the aim; nothing where no such peer ran."""
    peers = {name: us[name] for name in aim.peers if name in us}
    if not peers:
        return ""
    best = min(peers, key=lambda name: peers[name])
    part = us["ours"] / peers[best]
    missed = "" if part <= aim.ratio else ", missed"
    return f"{part:.2f} of {best.removeprefix('deepgemm+')} ({aim.ratio}{missed})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("--show", type=Path, metavar="JSON", help="measure nothing, show this")
    parser.add_argument("--page", type=Path, help="put the table into this page of the manual")
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.show:
        result = json.loads(arguments.show.read_text())
    else:
        result = measure(arguments.replays, arguments.rounds)
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if arguments.page:
        put_between(arguments.page, "indexer speed", table(result))


if __name__ == "__main__":
    main()
