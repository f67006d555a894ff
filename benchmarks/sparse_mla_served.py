"""Sparse MLA as a server calls it, beside vLLM's own backends, in one run on one CUDA device.

    python benchmarks/sparse_mla_served.py --output benchmarks/results/sparse_mla_served-h200.json
    python benchmarks/sparse_mla_served.py --sweep     # our kernel in other configurations

Indices are positions within a request, as the indexer leaves them: up to the top-k all there are,
then -1. Ours translates them itself; the others need vLLM's `triton_convert_req_index...` first,
which is timed with them, and counts how long rows are. `flashattn` is what FLASH_ATTN_MLA_SPARSE
calls, `flashmla` what FLASHMLA_SPARSE calls for a bf16 cache, its 64 heads padded beforehand
(vLLM 0.26.0, `v1/attention/backends/mla/`). How far their results are from ours is noted with them.

A figure is the median over replays of a CUDA graph with one call for each of several sets of
requests, divided by their number. The requests of a set lie anywhere in a large pool.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from glm5_kernel.ops.configs import Plan
    from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "kernel"), str(ROOT / "benchmarks")]

from sparse_mla import (  # noqa: E402
    LATENT,
    ROPE,
    SCALE,
    SLOTS,
    about,
    has_vllm,
    make_pools,
    pad_heads,
    time_us,
)
from tables import put_between  # noqa: E402
from tables import rows as markdown  # noqa: E402

PAGE = 64
HEADS = (8, 16)


class Shape(NamedTuple):
    """`requests` at a time, the last `tokens` of `context` of each; `topk` indices a row."""

    requests: int
    tokens: int
    context: int
    topk: int = 2048

    @property
    def what(self) -> str:
        return "decode" if self.tokens == 1 else "prefill"


SHAPES = (
    *(Shape(n, 1, context) for context in (1000, 8000, 32_000) for n in (1, 8, 64)),
    Shape(1, 8000, 8000),
    Shape(1, 2048, 32_000),
    Shape(64, 40, 1000),
    *(Shape(n, 1, 8000) for n in (16, 32, 128, 256)),
)
SWEPT = ((16, 32, 4, 3), (16, 32, 4, 2), (16, 32, 2, 2), (16, 16, 2, 3), (16, 64, 4, 2),
         (16, 64, 4, 3))  # fmt: skip
"""Heads, tile, warps and stages."""


class Batch:
    """A set of requests.

    Attributes:
        indices: [tokens, top-k] int32.
        requests, lengths: [tokens] int32.
        table: [requests, pages] int32.
    """

    def __init__(self, shape: Shape, slots: int, device: str) -> None:
        import torch

        pages = math.ceil(shape.context / PAGE)
        size = (shape.requests, pages)
        self.table = torch.randint(slots // PAGE, size, device=device, dtype=torch.int32)
        one = torch.arange(shape.context - shape.tokens, shape.context, device=device)
        positions = one.repeat(shape.requests)
        self.lengths = (positions + 1).clamp(max=shape.topk).int()
        self.requests = torch.arange(shape.requests, device=device).repeat_interleave(shape.tokens)
        self.requests = self.requests.int()
        parts = [_chosen(part, shape) for part in positions.split(1024)]
        self.indices = torch.cat(parts)


def _chosen(positions: Tensor, shape: Shape) -> Tensor:
    """Random ones of each token's past, in order where all are taken."""
    import torch

    score = torch.rand(len(positions), shape.context, device=positions.device)
    column = torch.arange(shape.context, device=positions.device)
    score.masked_fill_(column > positions[:, None], -1.0)
    width = min(shape.topk, shape.context)
    found = score.topk(width).indices
    short = positions[:, None] < shape.topk
    found = torch.where(short, column[:width], found)
    found = torch.where(found > positions[:, None], -1, found)
    return torch.nn.functional.pad(found, (0, shape.topk - width), value=-1).int()


class Case:
    """A shape with queries, and what it is measured on."""

    def __init__(self, shape: Shape, heads: int, pools: dict[str, Tensor]) -> None:
        import torch

        some = next(iter(pools.values()))
        self.shape, self.pools, slots = shape, pools, some.shape[0] * PAGE
        tokens = shape.requests * shape.tokens
        sets = 2 if tokens > 1000 else 20
        self.sets = [Batch(shape, slots, str(some.device)) for _ in range(sets)]
        self.q = torch.randn(tokens, heads, LATENT + ROPE, device=some.device, dtype=torch.bfloat16)

    def time(self, call: Callable[[Batch], object], replays: int) -> float:
        return round(time_us(lambda i: call(self.sets[i]), len(self.sets), replays), 2)

    def ours(
        self, kv: str, *, lengths: bool = True, chosen: Plan | None = None
    ) -> Callable[[Batch], tuple[Tensor, Tensor]]:
        import torch
        from glm5_kernel.ops.sparse_mla import sparse_mla

        tokens, heads, _ = self.q.shape
        space = torch.empty(
            max(tokens, 200) * heads * 64 * 1028 if tokens < 1000 else tokens * heads * 2 * 1028,
            dtype=torch.uint8, device=self.q.device,
        )  # fmt: skip
        out = self.q.new_empty(tokens, heads, LATENT)
        return lambda batch: sparse_mla(
            self.q, self.pools[kv], batch.indices, SCALE, block_table=batch.table,
            request_ids=batch.requests, lengths=batch.lengths if lengths else None,
            out=out, workspace=space, force_plan=chosen,
        )  # fmt: skip

    def peers(self) -> Iterator[tuple[str, Callable[[Batch], Tensor]]]:
        """vLLM's, on the bf16 pool; a call gives [tokens, heads, 512]."""
        import torch
        from vllm.third_party.flashmla.flash_mla_interface import flash_mla_sparse_fwd
        from vllm.v1.attention.backends.mla.sparse_utils import (
            triton_convert_req_index_to_global_index as convert,
        )
        from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

        (tokens, heads, _), topk, pool = self.q.shape, self.shape.topk, self.pools["bf16"]
        padded, rows = pad_heads(self.q), pool.view(-1, 1, LATENT + ROPE)

        def slots_of(b: Batch) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = convert(
                b.requests, b.table, b.indices, NUM_TOPK_TOKENS=topk, return_valid_counts=True
            )
            return found

        def flashmla(b: Batch) -> Tensor:
            slots, counts = slots_of(b)
            found: tuple[Tensor, ...] = flash_mla_sparse_fwd(
                padded, rows, slots.unsqueeze(1), SCALE, topk_length=counts
            )
            return found[0][:, :heads]

        yield "flashmla", flashmla
        starts = torch.arange(tokens + 1, device="cuda", dtype=torch.int32)
        latent, rope = self.q[..., :LATENT], self.q[..., LATENT:]
        keys = pool[..., LATENT:].view(-1, 1, 1, ROPE)
        values = pool[..., :LATENT].view(-1, 1, 1, LATENT)

        def flashattn(b: Batch) -> Tensor:
            slots, counts = slots_of(b)
            found: Tensor = flash_attn_varlen_func(
                q=rope, k=keys, v=values, q_v=latent, max_seqlen_q=1, cu_seqlens_q=starts,
                max_seqlen_k=topk, seqused_k=counts, block_table=slots, softmax_scale=SCALE,
                causal=True, fa_version=3,
            )  # fmt: skip
            return found

        yield "flashattn", flashattn


def row(case: Case, kv: str, impl: str, us: float, **more: object) -> dict[str, Any]:
    about = {"what": case.shape.what, **case.shape._asdict(), "heads": case.q.shape[1]}
    return {**about, "kv": kv, "impl": impl, "us": us, **more}


def measure(case: Case, replays: int, *, peers: bool) -> Iterator[dict[str, Any]]:
    """Ours, ours without being told how long rows are, and vLLM's."""
    for kv in case.pools:
        yield row(case, kv, "ours", case.time(case.ours(kv), replays))
        untold = case.time(case.ours(kv, lengths=False), replays)
        yield row(case, kv, "ours, whole rows", untold)
    for name, call in case.peers() if peers else ():
        far = distance(call(case.sets[0]), case.ours("bf16")(case.sets[0])[0])
        yield row(case, "bf16", name, case.time(call, replays), differs=far)


def distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    return round(float((found - wanted).abs().max() / wanted.abs().max()), 4)


def sweep(case: Case, replays: int) -> Iterator[dict[str, Any]]:
    """Our kernel in every configuration, with the splits that fill the device about once."""
    from dataclasses import replace

    from glm5_kernel.ops.configs import Config, Load
    from glm5_kernel.ops.sparse_mla import device_table

    hardware = device_table(case.q.device)[1]
    load = Load(case.q.shape[0], case.q.shape[1], case.shape.topk, hardware)
    for kv, given in itertools.product(case.pools, SWEPT):
        # Of these some are alike.
        config = Config(*given, shared_bytes(kv, given))
        plans = {
            found.parts: found
            for found in (load.whole(replace(config, resident=n)) for n in (1, 2, 3, 4))
        }
        for parts, chosen in plans.items():
            try:
                us = case.time(case.ours(kv, chosen=chosen), replays)
            except Exception as error:  # a configuration may not fit
                print(kv, given, type(error).__name__, str(error)[:90], flush=True)
                break
            yield row(case, kv, "ours", us, config=given, parts=parts)


def shared_bytes(kv: str, given: tuple[int, int, int, int]) -> int:
    """Of a program, as Triton compiles it: tiles in flight, queries and probabilities."""
    heads, tile, _, stages = given
    row_bytes = 1152 if kv == "bf16" else 656
    return (stages - 1) * tile * row_bytes + 2 * heads * (LATENT + ROPE + tile)


def table(given: dict[str, Any]) -> str:
    """Markdown: one line a shape; in brackets ours of the quickest of vLLM's."""
    lines: dict[tuple[Any, ...], dict[tuple[str, str], float]] = {}
    for each in given["rows"]:
        key = (each["what"], each["heads"], each["requests"], each["tokens"], each["context"])
        lines.setdefault(key, {})[each["impl"], each["kv"]] = each["us"]
    cells = []
    for (what, heads, requests, tokens, context), us in lines.items():
        peers = [us[name, "bf16"] for name in ("flashmla", "flashattn") if (name, "bf16") in us]
        ours = [us["ours", kv] for kv in ("bf16", "fp8_ds_mla")]
        told = [f"{one:.1f} ({one / min(peers):.2f})" if peers else f"{one:.1f}" for one in ours]
        about = [f"{what}, {requests} × {tokens:,}", f"{context:,}", str(heads)]
        whole = f"{us['ours, whole rows', 'bf16']:.1f}"
        cells.append([*about, *told, whole, *(f"{one:.1f}" for one in peers)])
    head = ["requests × tokens", "context", "heads", "ours bf16, µs", "ours fp8", "whole rows",
            "flashmla", "flashattn"]  # fmt: skip
    return markdown(head, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("--sweep", action="store_true", help="our kernel's configurations instead")
    parser.add_argument("--heads", type=int, nargs="*", default=HEADS)
    parser.add_argument("--shape", type=int, nargs="*", help="numbers of shapes; default all")
    parser.add_argument("--replays", type=int, default=11)
    parser.add_argument("--show", type=Path, metavar="JSON", help="measure nothing, show this")
    parser.add_argument("--page", type=Path, help="put the table into this page of the manual")
    arguments = parser.parse_args()
    if arguments.show:
        shown = table(json.loads(arguments.show.read_text()))
        print(shown)
        if arguments.page:
            put_between(arguments.page, "served speed", shown)
        return
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure, and print a line for each shape."""
    import torch

    pools, rows = make_pools(), []
    for heads, number in itertools.product(arguments.heads, range(len(SHAPES))):
        if arguments.shape and number not in arguments.shape:
            continue
        case = Case(SHAPES[number], heads, pools)
        if arguments.sweep:
            found = list(sweep(case, arguments.replays))
        else:
            found = list(measure(case, arguments.replays, peers=has_vllm()))
        rows += found
        print(shape_line(found), flush=True)
        if arguments.output:  # after every shape: a later one may fail
            arguments.output.write_text(json.dumps(result(rows), indent=1) + "\n")
        del case
        torch.cuda.empty_cache()


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**about(), "slots": SLOTS, "rows": rows}


def shape_line(rows: list[dict[str, Any]]) -> str:
    """One line: the shape, and µs of each, the quickest first."""
    first = rows[0]
    found = sorted(rows, key=lambda each: each["us"])[:14]
    said = "  ".join(
        f"{each['impl']}/{each['kv']} {each.get('config', '')} {each.get('parts', '')} {each['us']}"
        for each in found
    )
    size = f"{first['requests']} × {first['tokens']} of {first['context']}"
    return f"{first['what']} {size}, {first['heads']} heads: {said}"


if __name__ == "__main__":
    main()
