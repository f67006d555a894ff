"""Speed of the sparse MLA kernel beside its peers, in one run on one CUDA device.

    python benchmarks/sparse_mla.py --output benchmarks/results/sparse_mla-h200.json
    python benchmarks/sparse_mla.py --draw benchmarks/results/sparse_mla-h200.json \
        --page docs/kernels.md

The peers are those of an installed vLLM with FlashMLA: `flashmla_bf16`, `flashmla_fp8`,
`vllm_triton` (vLLM's own Triton kernel) and `dense_triton` (its dense Triton decode kernel with the
chosen slots as a block table of page size 1, the best of several split counts). Without vLLM only
our rows are measured. `ours` uses the device's own table of configurations, `ours_sm120` that of
SM120.

A figure is the median over replays of a CUDA graph that holds one call for each of many random
index sets, divided by their number; together the sets gather more than the L2 cache holds.
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

from measure import command, commit  # noqa: E402
from tables import put_between  # noqa: E402

TOPK = 2048
SLOTS = 524_288
LATENT, ROPE = 512, 64
SCALE = (LATENT + ROPE) ** -0.5
SHAPES = [(t, h) for h in (8, 16, 64) for t in (1, 4, 8, 32, 128, 2048)]
KINDS = ("bf16", "fp8_ds_mla")

Call = Callable[[int], object]


class Aim(NamedTuple):
    """At most `ratio` times the peer."""

    ratio: float
    peer: str


def aim(tokens: int, heads: int, kv: str) -> Aim | None:
    """What issue 3 asks of a shape."""
    fp8 = kv == "fp8_ds_mla"
    if heads == 64:
        if tokens == 8:
            return Aim(1.0, "flashmla_fp8")
        return Aim(1.5, f"flashmla_{'fp8' if fp8 else 'bf16'}") if tokens >= 128 else None
    ratios = {1: (0.4, 0.45), 4: (0.55, 0.6), 8: (0.55, 0.6), 32: (0.6, 0.7)}
    if tokens in ratios:
        return Aim(ratios[tokens][fp8], "flashmla_fp8")
    return Aim(0.75, "flashmla_fp8") if fp8 else Aim(0.95, "flashmla_bf16")


def make_pools() -> dict[str, Tensor]:
    """KV pools of `SLOTS` tokens in blocks of 64, by kind."""
    import torch
    from glm5_kernel.ops.layouts import Fp8Layout, assemble_fp8

    shape = (SLOTS // 64, 64)
    values = torch.randn(*shape, LATENT, device="cuda").mul_(100).clamp_(-448, 448)
    scales = torch.rand(*shape, LATENT // 128, device="cuda") * 0.01 + 0.005
    rope = torch.randn(*shape, ROPE, device="cuda")
    packed = assemble_fp8(values.to(torch.float8_e4m3fn), scales, rope, Fp8Layout(LATENT, ROPE))
    plain = torch.randn(*shape, LATENT + ROPE, device="cuda", dtype=torch.bfloat16)
    return {"bf16": plain, "fp8_ds_mla": packed}


def time_us(call: Call, sets: int, replays: int) -> float:
    """Median µs per call of a graph that calls once per index set."""
    import torch

    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(sets):
            call(i)
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / sets)
    return statistics.median(times)


def ceilings() -> tuple[float, float]:
    """Measured bytes/s (the better of a copy and a sum) and bf16 matrix FLOP/s of the device."""
    import torch

    data, target = torch.randn(2, 1 << 30, device="cuda")
    copy = 2 * data.nbytes / time_us(lambda _: target.copy_(data), 4, 5)
    read = data.nbytes / time_us(lambda _: data.sum(), 4, 5)
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 1e6 * max(copy, read), 1e6 * 2 * 8192**3 / time_us(lambda _: a @ b, 4, 5)


def ours(pool: Tensor, q: Tensor, indices: list[Tensor], table: str | None) -> Iterator[Call]:
    """Our kernel with the device's table, or with the one named."""
    import torch
    from glm5_kernel.ops import configs
    from glm5_kernel.ops.sparse_mla import device_table, sparse_mla

    tokens, heads, _ = q.shape
    chosen = None
    if table:
        kv: configs.Kv = "fp8" if pool.dtype == torch.uint8 else "16bit"
        chosen = configs.plan(table, kv, tokens, heads, TOPK, device_table(q.device)[1])
    out = q.new_empty(tokens, heads, LATENT)
    lse = q.new_empty(tokens, heads, dtype=torch.float32)
    space = torch.empty(tokens * heads * 64 * 1028, dtype=torch.uint8, device="cuda")
    yield lambda i: sparse_mla(
        q, pool, indices[i], SCALE, out=out, lse=lse, workspace=space, force_plan=chosen
    )


def flashmla_bf16(pool: Tensor, q: Tensor, indices: list[Tensor]) -> Iterator[Call]:
    from vllm.third_party.flashmla.flash_mla_interface import flash_mla_sparse_fwd

    padded, rows = pad_heads(q), pool.view(-1, 1, LATENT + ROPE)
    yield lambda i: flash_mla_sparse_fwd(padded, rows, indices[i].unsqueeze(1), SCALE)


def flashmla_fp8(pool: Tensor, q: Tensor, indices: list[Tensor]) -> Iterator[Call]:
    """Both ways that vLLM calls it: a batch of one-token requests, and one request."""
    import torch
    from vllm.third_party.flashmla.flash_mla_interface import (
        flash_mla_with_kvcache,
        get_mla_metadata,
    )

    for dim in (1, 0):
        batch = q.shape[0] if dim else 1
        table = torch.zeros(batch, 1, dtype=torch.int32, device="cuda")
        lengths = torch.full((batch,), SLOTS, dtype=torch.int32, device="cuda")
        run = functools.partial(
            flash_mla_with_kvcache,
            q=pad_heads(q).unsqueeze(dim),
            k_cache=pool.unsqueeze(-2),
            block_table=table,
            cache_seqlens=lengths,
            head_dim_v=LATENT,
            tile_scheduler_metadata=get_mla_metadata()[0],
            is_fp8_kvcache=True,
            softmax_scale=SCALE,
        )
        yield lambda i, run=run, dim=dim: run(indices=indices[i].unsqueeze(dim))


def vllm_triton(pool: Tensor, q: Tensor, indices: list[Tensor]) -> Iterator[Call]:
    from vllm.v1.attention.ops.xpu_mla_sparse import triton_bf16_mla_sparse_interface

    rows = pool.view(-1, 1, LATENT + ROPE)
    yield lambda i: triton_bf16_mla_sparse_interface(q, rows, indices[i].unsqueeze(1), SCALE)


def dense_triton(pool: Tensor, q: Tensor, indices: list[Tensor]) -> Iterator[Call]:
    import torch
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    tokens, heads, _ = q.shape
    rows = pool.view(-1, 1, LATENT + ROPE)
    lengths = torch.full((tokens,), TOPK, dtype=torch.int32, device="cuda")
    out = q.new_empty(tokens, heads, LATENT)
    lse = q.new_empty(tokens, heads, dtype=torch.float32)
    one = torch.ones((), dtype=torch.float32, device="cuda")
    for splits in (4, 8, 16, 32, 64) if tokens <= 128 else (1, 4):
        parts = q.new_empty(tokens, heads, splits, LATENT + 1, dtype=torch.float32)

        def call(i: int, parts: Tensor = parts, splits: int = splits) -> object:
            return decode_attention_fwd(
                q, rows, rows[..., :LATENT], out, lse, indices[i], lengths, parts, splits, SCALE,
                page_size=1, k_scale=one, v_scale=one, is_mla=True,
            )  # fmt: skip

        yield call


@functools.lru_cache(maxsize=8)
def pad_heads(q: Tensor) -> Tensor:
    """FlashMLA wants 64 heads; padding is not timed."""
    padded = q.new_zeros(q.shape[0], max(64, q.shape[1]), q.shape[2])
    padded[:, : q.shape[1]] = q
    return padded


IMPLEMENTATIONS: dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Call]]]] = {
    "ours": (KINDS, functools.partial(ours, table=None)),
    "ours_sm120": (KINDS, functools.partial(ours, table="sm120")),
    "flashmla_bf16": (("bf16",), flashmla_bf16),
    "flashmla_fp8": (("fp8_ds_mla",), flashmla_fp8),
    "vllm_triton": (("bf16",), vllm_triton),
    "dense_triton": (("bf16",), dense_triton),
}


def measure(shapes: list[tuple[int, int]], replays: int) -> dict[str, Any]:
    """All implementations on all shapes."""
    import torch

    peers = has_vllm()
    bandwidth, rate = ceilings()
    pools = make_pools()
    rows = []
    for tokens, heads in shapes:
        q = torch.randn(tokens, heads, LATENT + ROPE, device="cuda", dtype=torch.bfloat16)
        sets = min(200, max(20, math.ceil(256e6 / (tokens * TOPK * 656)))) if tokens < 999 else 4
        indices = [
            torch.randint(0, SLOTS, (tokens, TOPK), device="cuda", dtype=torch.int32)
            for _ in range(sets)
        ]
        for name, (kinds, make) in IMPLEMENTATIONS.items():
            for kv in kinds if peers or name.startswith("ours") else ():
                calls = make(pools[kv], q, indices)
                us = min(time_us(call, sets, replays) for call in calls)
                bytes_ = tokens * TOPK * (656 if kv == "fp8_ds_mla" else 1152)
                operations = 2 * tokens * heads * TOPK * (2 * LATENT + ROPE)
                floor = 1e6 * max(bytes_ / bandwidth, operations / rate)
                rows.append(
                    {
                        "tokens": tokens, "heads": heads, "kv": kv, "impl": name,
                        "us": round(us, 2), "floor_us": round(floor, 2),
                    }
                )  # fmt: skip
        print(shape_line(rows, tokens, heads), flush=True)
    return {
        **about(),
        "ceilings": {"bytes_per_s": bandwidth, "bf16_flop_per_s": rate},
        "rows": rows,
    }


def has_vllm() -> bool:
    try:
        import vllm  # noqa: F401
    except ImportError:
        return False
    return True


def about() -> dict[str, Any]:
    """What a result is of, and how it was made."""
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "commit": commit(),
        "command": command(),
    }


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    from importlib.metadata import PackageNotFoundError, version

    import glm5_kernel

    found = {"glm5-kernel": glm5_kernel.__version__}
    for name in ("torch", "triton", "vllm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def find(rows: list[dict[str, Any]], tokens: int, heads: int) -> dict[tuple[str, str], float]:
    """µs by implementation and kind of KV, for one shape."""
    return {
        (r["impl"], r["kv"]): r["us"] for r in rows if (r["tokens"], r["heads"]) == (tokens, heads)
    }


def shape_line(rows: list[dict[str, Any]], tokens: int, heads: int) -> str:
    us = find(rows, tokens, heads)
    return f"{tokens:5d} × {heads:3d}  " + "  ".join(
        f"{impl}{'/fp8' if kv == 'fp8_ds_mla' else ''} {value:.1f}"
        for (impl, kv), value in us.items()
    )


def table(result: dict[str, Any]) -> str:
    """Markdown: our figures beside the peers', the share of the floor, and the aims."""
    rows = result["rows"]
    lines = [
        "| tokens × heads | KV | ours, µs | SM120's table, µs | of the floor | "
        "FlashMLA bf16 / fp8 | vLLM Triton | dense Triton | aim | ours | SM120's |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    shapes = list(dict.fromkeys((r["tokens"], r["heads"]) for r in rows))
    for tokens, heads in shapes:
        us = find(rows, tokens, heads)
        for kv in KINDS:
            floor = next(
                r["floor_us"] for r in rows
                if (r["tokens"], r["heads"], r["kv"]) == (tokens, heads, kv)
            )  # fmt: skip
            lines.append(table_line(us, tokens, heads, kv, floor))
    return "\n".join(lines)


def table_line(
    us: dict[tuple[str, str], float], tokens: int, heads: int, kv: str, floor: float
) -> str:
    mine, narrow = us["ours", kv], us["ours_sm120", kv]
    bf16, fp8 = us.get(("flashmla_bf16", "bf16")), us.get(("flashmla_fp8", "fp8_ds_mla"))
    others = [us.get((name, "bf16")) for name in ("vllm_triton", "dense_triton")]
    cells = [
        f"{tokens} × {heads}", kv, f"{mine:.1f}", f"{narrow:.1f}", f"{floor / mine:.0%}",
        f"{number(bf16)} / {number(fp8)}", *map(number, others),
    ]  # fmt: skip
    goal = aim(tokens, heads, kv)
    peer = {"flashmla_bf16": bf16, "flashmla_fp8": fp8}[goal.peer] if goal else None
    if goal and peer:
        limit = goal.ratio * peer
        marks = ["met" if value <= limit else f"missed ({value / peer:.2f})"
                 for value in (mine, narrow)]  # fmt: skip
        if heads == 64:
            marks[1] = "–"
        cells += [f"{goal.ratio} × {goal.peer.removeprefix('flashmla_')} = {limit:.1f}", *marks]
    else:
        cells += ["–", "–", "–"]
    return "| " + " | ".join(cells) + " |"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def draw(result: dict[str, Any], target: Path) -> None:
    """µs and share of the floor against tokens, for 8 heads and for 64."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "sparse_mla"  # the same figures give the same file
    from matplotlib import pyplot as plt

    colours = {
        "ours": "#0b6e4f", "ours_sm120": "#62b58f", "flashmla_bf16": "#c44536",
        "flashmla_fp8": "#e09f3e", "vllm_triton": "#7d8597", "dense_triton": "#33415c",
    }  # fmt: skip
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), sharex=True)
    for column, heads in enumerate((8, 64)):
        for (impl, (kinds, _)), kv in (
            (item, kv) for item in IMPLEMENTATIONS.items() for kv in item[1][0]
        ):
            del kinds
            points = [
                r for r in result["rows"]
                if (r["heads"], r["impl"], r["kv"]) == (heads, impl, kv)
            ]  # fmt: skip
            if not points or (impl == "ours_sm120" and heads == 64):
                continue
            style = {
                "color": colours[impl], "linestyle": "--" if kv == "fp8_ds_mla" else "-",
                "marker": "o", "markersize": 3.5, "label": f"{impl}, {kv}",
            }  # fmt: skip
            tokens = [p["tokens"] for p in points]
            axes[0][column].loglog(tokens, [p["us"] for p in points], **style)
            axes[1][column].semilogx(
                tokens, [100 * p["floor_us"] / p["us"] for p in points], **style
            )
        axes[0][column].set_title(f"{heads} heads")
        axes[1][column].set_xlabel("query tokens")
        for row in range(2):
            axes[row][column].grid(alpha=0.3)
    axes[0][0].set_ylabel("µs per call")
    axes[1][0].set_ylabel("share of the floor, %")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"Sparse MLA, top-k 2048, {result['device']}")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("--draw", type=Path, metavar="JSON", help="measure nothing, show this")
    parser.add_argument("--page", type=Path, help="put table and plot into this page of the manual")
    parser.add_argument("--heads", type=int, nargs="*", help="only these numbers of heads")
    parser.add_argument("--replays", type=int, default=11)
    arguments = parser.parse_args()
    if arguments.draw:
        result = json.loads(arguments.draw.read_text())
    else:
        shapes = [s for s in SHAPES if not arguments.heads or s[1] in arguments.heads]
        result = measure(shapes, arguments.replays)
    print(table(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.page:
        put_between(arguments.page, "speed", table(result))
        draw(result, arguments.page.with_name("sparse_mla-h200.svg"))


if __name__ == "__main__":
    main()
