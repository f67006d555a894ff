"""How fast a rank loads its part of a GGUF file, beside dd, and the host memory that it takes.

    python benchmarks/gguf_loading.py DIR --output benchmarks/results/gguf_loading-h200.json
    python benchmarks/gguf_loading.py --show benchmarks/results/gguf_loading-h200.json \
        --page docs/gguf.md

DIR gets a model with GLM-5's widths and as many layers as make `--gigabytes` (deleted afterwards,
unless --keep). Before every reading the page cache is dropped, and how much of the file stayed in
it is noted. The yardstick is `dd bs=32M of=/dev/null`, and the same reading into one page-locked
buffer. Loading is vLLM's own model made and filled by our loader in a process of its own: the time
is that of filling, the memory the rise of the process's peak over what it held before.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernel"), str(ROOT / "benchmarks")]

from tables import put_between  # noqa: E402

AIM_RATE = 0.8
"""Of dd's."""
AIM_MEMORY = 2 << 30
"""Bytes of host memory beside the rank's share, which lies on the GPU."""
BLOCK = 32 << 20


def make_model(folder: Path, gigabytes: float, quant: str) -> list[Path]:
    """A model of at least so many GB with the widths of GLM-5, one dense layer first."""
    from glm5_kernel.gguf.tiny.spec import make_spec
    from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf

    layers = 2
    while True:
        changes = {"vocab": 8192}
        spec = make_spec(
            dims="real", layers=layers, quant=quant, changes=changes, same_experts=True
        )
        if size_of(spec) >= gigabytes * 1e9:
            break
        layers += 1
    folder.mkdir(parents=True, exist_ok=True)
    paths = write_gguf(folder, spec, split=3)
    write_companions(folder, spec)
    return paths


def size_of(spec: Any) -> int:  # noqa: ANN401
    """Bytes of a model's tensors."""
    from glm5_kernel.gguf.tiny.recipes import kind_for
    from glm5_kernel.gguf.tiny.spec import tensor_dims
    from glm5_kernel.gguf.types import tensor_bytes

    return sum(
        tensor_bytes(kind_for(spec.quant, name, ne), ne) for name, ne in tensor_dims(spec).items()
    )


def drop(paths: Sequence[Path]) -> float:
    """Put files out of the page cache; returns the share that still is in it."""
    os.sync()
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # Not root, or in a container, advice alone must do; the check below tells.
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")
    return cached(paths)


def cached(paths: Sequence[Path]) -> float:
    """The share of the files' pages that is in the page cache; mincore(2) reads none of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    inside = pages = 0
    for path in paths:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
            count = -(-len(mapped) // mmap.PAGESIZE)
            seen = (ctypes.c_ubyte * count)()
            first = ctypes.c_ubyte.from_buffer(mapped)
            if libc.mincore(ctypes.addressof(first), len(mapped), seen):
                raise OSError(ctypes.get_errno(), "mincore", str(path))
            del first
            inside += sum(page & 1 for page in seen)
            pages += count
    return inside / pages


def dd(paths: Sequence[Path]) -> float:
    """Seconds that dd takes to read the files."""
    begin = time.perf_counter()
    for path in paths:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=32M", "status=none"], check=True)
    return time.perf_counter() - begin


def read_pinned(paths: Sequence[Path]) -> float:
    """Seconds that one thread takes to read the files into a page-locked buffer."""
    import torch

    buffer = torch.empty(BLOCK, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    view = memoryview(buffer.numpy())
    begin = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(view):
                pass
    return time.perf_counter() - begin


def status(field: str) -> int:
    """A size of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None, field
    return int(found[1]) * 1024


def child(path: Path, rank: int, size: int) -> dict[str, Any]:
    """Load in this process: seconds, bytes and the peak of memory."""
    import torch

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    else:
        import tests.vllm.gguf.conftest  # noqa: F401  (vLLM's models are made without a GPU)
    import vllm_gguf_plugin
    from glm5_kernel.plugin import register

    register()
    vllm_gguf_plugin.register()
    from glm5_kernel.gguf import loader
    from vllm.v1.worker.workspace import init_workspace_manager

    from tests.vllm.gguf.ranks import config_for, load_with

    config = config_for(path)
    init_workspace_manager(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    seen: dict[str, Any] = {}
    fill = loader.fill_all

    def measured(*arguments: Any, **more: Any) -> int:  # noqa: ANN401
        seen["before"] = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        start = time.perf_counter()
        seen["read"] = fill(*arguments, **more)
        seen["seconds"] = time.perf_counter() - start
        seen["peak"] = status("VmHWM")
        return int(seen["read"])

    loader.fill_all = measured
    begin = time.perf_counter()
    model = load_with(config, rank, size)
    whole = time.perf_counter() - begin
    share = sum(each.numel() * each.element_size() for each in model.parameters())
    on_host = not torch.cuda.is_available()
    return {
        "rank": rank,
        "tp": size,
        "seconds": round(seen["seconds"], 3),
        "gigabytes_read": round(seen["read"] / 1e9, 3),
        "seconds_whole_load": round(whole, 2),
        "share_bytes": share,
        "host_rise_bytes": seen["peak"] - seen["before"],
        "host_share_bytes": share if on_host else 0,
    }


def in_child(path: Path, rank: int, size: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(path), str(rank), str(size)],
        stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(folder: Path, gigabytes: float, quant: str, tps: Sequence[int], runs: int) -> Any:  # noqa: ANN401
    """Everything, in turn, each from a cold cache."""
    import torch

    paths = sorted(folder.glob("*.gguf")) or make_model(folder, gigabytes, quant)
    size = sum(path.stat().st_size for path in paths)
    rows: list[dict[str, Any]] = []
    for _ in range(runs):
        rows.append({"what": "dd", "cached": drop(paths), "seconds": dd(paths)})
        left = drop(paths)
        rows.append({"what": "pinned", "cached": left, "seconds": read_pinned(paths)})
        for tp in tps:
            left = drop(paths)
            try:
                rows.append({"what": "load", "cached": left} | in_child(paths[0], tp - 1, tp))
            except subprocess.CalledProcessError as error:
                print(f"loading rank {tp - 1} of {tp} failed: exit {error.returncode}", flush=True)
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "quant": quant,
        "bytes": size,
        "rows": rows,
    }


def show(result: dict[str, Any]) -> str:
    """A table, and whether the aims are met: the best run of each counts."""
    size, rows = result["bytes"], result["rows"]
    best = min(row["seconds"] for row in rows if row["what"] == "dd")
    rate = size / best / 1e9
    lines = [f"{size / 1e9:.1f} GB of {result['quant']}, {result['device']}", ""]
    lines += ["| what | GB read | s | GB/s | of dd | host memory, MiB |", "| --- |" + " --- |" * 5]
    for row in rows:
        read = row.get("gigabytes_read") or size / 1e9
        name = f"load, rank {row['rank']} of {row['tp']}" if row["what"] == "load" else row["what"]
        speed = read / row["seconds"]
        memory = f"{row['host_rise_bytes'] / (1 << 20):.0f}" if row["what"] == "load" else "–"
        lines.append(
            f"| {name} | {read:.1f} | {row['seconds']:.1f} | {speed:.2f} | {speed / rate:.2f} | "
            f"{memory} |"
        )
    loads = [row for row in rows if row["what"] == "load" and row["tp"] == 1]
    if loads:
        ratio = max(row["gigabytes_read"] / row["seconds"] for row in loads) / rate
        rise = max(row["host_rise_bytes"] - row["host_share_bytes"] for row in loads)
        lines += [
            "",
            f"- rate: {ratio:.2f} of dd's (aim {AIM_RATE}): "
            f"{'met' if ratio >= AIM_RATE else 'missed'}",
            f"- memory: {rise / (1 << 30):.2f} GiB beside the share (aim 2): "
            f"{'met' if rise <= AIM_MEMORY else 'missed'}",
        ]
    left = [round(100 * row["cached"]) for row in rows]
    lines.append(f"- left in the page cache before each: {min(left)} to {max(left)} % of the file")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", help="where the model is made, or was with --keep"
    )
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--quant", default="q8_0", help="a recipe of make-tiny")
    parser.add_argument("--tp", type=int, nargs="*", default=[1, 8], help="the last rank of each")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the model")
    parser.add_argument("--make", action="store_true", help="make the model, and no more")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--show", type=Path, help="print the table of a result")
    parser.add_argument("--page", type=Path, help="put the table into this page of the manual")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, rank, size = arguments.child
        print(json.dumps(child(Path(path), int(rank), int(size))))
        return
    if arguments.show:
        text = show(json.loads(arguments.show.read_text()))
        print(text)
        if arguments.page:
            put_between(arguments.page, "loading speed", text)
        return
    if arguments.folder is None:
        parser.error("a folder is needed")
    if arguments.make:
        make_model(arguments.folder, arguments.gigabytes, arguments.quant)
        return
    result = measure(
        arguments.folder, arguments.gigabytes, arguments.quant, arguments.tp, arguments.runs
    )
    print(show(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    if not arguments.keep:
        for path in arguments.folder.glob("*.gguf"):
            path.unlink()


if __name__ == "__main__":
    main()
