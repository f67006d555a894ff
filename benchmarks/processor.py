"""What our ops take of the processor in a server, with and without what is kept between calls.

    PYTHONPATH=kernel python benchmarks/processor.py

No GPU: Triton's driver is replaced, nothing is compiled, and the launch itself is left out. With:
`ops.forms` and `ops.launch` as they are, for a form that is known. Without: each call is checked
and planned anew, and Triton binds and classifies every argument. Both in one run, in turn.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "kernel"), str(ROOT / "benchmarks"), str(ROOT)]

import torch  # noqa: E402
import triton  # noqa: E402
from tables import rows as markdown  # noqa: E402
from triton.runtime import JITFunction  # noqa: E402

from tests.kernel.stand_in import stand_in  # noqa: E402

stand_in("sm90", set())
from glm5_kernel.ops import forms, launch  # noqa: E402
from glm5_kernel.ops.indexer import decode_topk, prefill_topk  # noqa: E402
from glm5_kernel.ops.sparse_mla import sparse_mla  # noqa: E402
from glm5_kernel.ops.topk import topk_indices, workspace_bytes  # noqa: E402

from tests.kernel.launching import Noting  # noqa: E402

CALLS, ROUNDS = 20, 60
E4M3 = torch.float8_e4m3fn


def calls() -> dict[str, Callable[[], object]]:
    """As one layer of a server makes them: 64 requests that decode, 1,000 tokens of a prefill."""
    cpu = torch.device("cpu")
    space = torch.zeros(1 << 26, dtype=torch.uint8)
    counters = torch.zeros(workspace_bytes(8192, device=cpu), dtype=torch.uint8)

    def ints(*size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32)

    q = torch.zeros(64, 16, 512, dtype=torch.bfloat16), torch.zeros(64, 16, 64).bfloat16()
    cache, chosen, table, some = (
        torch.zeros(300, 64, 576).bfloat16(),
        ints(64, 2048),
        ints(64, 141),
        ints(64),
    )
    keys = torch.zeros(300, 64, 132, dtype=torch.uint8)
    decoded, weights, lengths = (
        torch.zeros(64, 1, 32, 128).to(E4M3),
        torch.zeros(64, 32),
        ints(64, 1),
    )
    q_new, k_new = torch.zeros(1000, 32, 128).to(E4M3), torch.zeros(9000, 128).to(E4M3)
    scale, w_new, ends = torch.zeros(9000), torch.zeros(1000, 32), ints(1000)
    scores = torch.zeros(64, 4096)
    return {
        "sparse_mla": lambda: sparse_mla(
            q, cache, chosen, 0.1, block_table=table, request_ids=some, lengths=some,
            workspace=space,
        ),
        "topk_indices": lambda: topk_indices(
            scores, 2048, ends=lengths, out=chosen, workspace=counters
        ),
        "decode_topk": lambda: decode_topk(
            decoded, keys, weights, lengths, table, 2048, max_context=4096, workspace=counters
        ),
        "prefill_topk": lambda: prefill_topk(
            q_new, k_new, scale, w_new, ends, ends, 2048, workspace=counters
        ),
    }  # fmt: skip


def quiet() -> None:
    """Compiled kernels that do nothing at all; Triton keeps them as it keeps others."""

    def compiled(kernel: Any, key: str, _: object, device: int, *__: object) -> Noting:  # noqa: ANN401
        made = kernel.device_caches[device][0][key] = Noting(key, [])
        return made

    triton.knobs.runtime.jit_cache_hook = None
    JITFunction._do_compile = compiled
    Noting.run = property(lambda _: lambda *_: None)  # type: ignore[assignment,method-assign]


def anew(call: Callable[[], object]) -> Callable[[], object]:
    def forgotten() -> object:
        forms.forget()
        return call()

    return forgotten


def microseconds(call: Callable[[], object], *, kept: bool) -> float:
    """The least of a call, over rounds."""
    launch.KEEPS = kept
    call = call if kept else anew(call)
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    quiet()
    found: list[list[Any]] = []
    for name, call in calls().items():
        rounds = [
            (microseconds(call, kept=True), microseconds(call, kept=False)) for _ in range(ROUNDS)
        ]
        kept, new = (min(each) for each in zip(*rounds, strict=True))
        found.append([f"`{name}`", f"{kept:.0f}", f"{new:.0f}", f"{kept / new:.2f}"])
    print(markdown(["op", "µs a call", "without what is kept", "of that"], found))


if __name__ == "__main__":
    main()
