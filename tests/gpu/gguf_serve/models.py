"""Make one of the files, or compute its reference, in a process of its own.

    python3 tests/gpu/gguf_serve/models.py make NAME FOLDER
    python3 tests/gpu/gguf_serve/models.py reference NAME FOLDER OUTPUT.json

The reference is transformers in float32 on the file's weights, dequantised by gguf-py. Beside it:
the same in bf16 (what rounding costs, the yardstick), and with every token selected (what the
selection is worth: an indexer that chose wrong would be off by as much).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if __package__ in (None, ""):
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3] / "kernel")]
    __package__ = "gguf_serve"

from . import cases

if TYPE_CHECKING:
    from glm5_kernel.gguf.tiny.spec import TinySpec

Answer = dict[str, Any]


def spec_of(model: cases.Model) -> TinySpec:
    """What `make-tiny` would make."""
    from glm5_kernel.gguf.tiny.spec import make_spec

    return make_spec(**{"dims": "tiny", **model.form})


def prompts(vocabulary: int) -> dict[str, list[int]]:
    """Random bytes' tokens by their number, the same for every model."""
    return {
        str(n): [int(t) for t in np.random.Generator(np.random.PCG64([5, n])).integers(3, 256, n)]
        for n in cases.LENGTHS
        if vocabulary >= 256
    }


def make(name: str, folder: Path) -> None:
    """Write the files."""
    from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf

    model = cases.MODELS[name]
    spec = spec_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(folder, spec, model.split)
    write_companions(folder, spec, bare=model.bare)


def rows(model: Any, ids: list[int]) -> list[float]:  # noqa: ANN401
    """Log-probability of each token but the first."""
    import torch

    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=device), use_cache=False).logits[0, :-1]
        wanted = torch.tensor(ids[1:], device=device)
        found = torch.log_softmax(logits.double(), -1).gather(1, wanted[:, None])[:, 0]
    return [round(value, 5) for value in found.tolist()]


def reference(name: str, folder: Path, output: Path) -> None:
    """Score and continue every prompt."""
    import torch
    from glm5_kernel.gguf.tiny.reference import build_model, read_tensors
    from glm5_kernel.gguf.tiny.spec import config
    from serve.reference import score

    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    spec = spec_of(cases.MODELS[name])
    begin = time.monotonic()
    tensors = read_tensors(sorted(folder.glob("*.gguf")))
    loaded = build_model(config(spec), tensors, spec.hp, spec.pattern).to(device)
    asked = prompts(spec.hp.vocab)
    answers = {each: score(loaded, ids, cases.DECODED) for each, ids in asked.items()}
    paths = {each: ids + answers[each]["tokens"] for each, ids in asked.items()}
    dense = all_selected(loaded, paths)
    to_bfloat16(loaded)
    rounded = {each: rows(loaded, ids) for each, ids in paths.items()}
    found = {"answers": answers, "bf16": rounded, "dense": dense, "device": device}
    output.write_text(json.dumps(found))
    print(f"{name}: {time.monotonic() - begin:.1f} s on {device}", flush=True)


def to_bfloat16(model: Any) -> None:  # noqa: ANN401
    """Weights to bf16; buffers (RoPE's frequencies, the router's bias) stay, as servers have it."""
    import torch

    before = {
        (module, name): buffer.clone()
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    }
    model.to(torch.bfloat16)
    for (module, name), buffer in before.items():
        setattr(module, name, buffer)


def all_selected(model: Any, paths: dict[str, list[int]]) -> dict[str, list[float]]:  # noqa: ANN401
    """Scores where the indexers select every token."""
    chosen = [each for each in model.modules() if hasattr(each, "index_topk")]
    before = [each.index_topk for each in chosen]
    for each in chosen:
        each.index_topk = cases.CONTEXT
    found = {each: rows(model, ids) for each, ids in paths.items()}
    for each, value in zip(chosen, before, strict=True):
        each.index_topk = value
    return found


def main(what: str, name: str, folder: str, *output: str) -> None:
    if what == "make":
        make(name, Path(folder))
    else:
        reference(name, Path(folder), Path(output[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
