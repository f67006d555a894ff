"""Log-probabilities by transformers in float32, and the continuations that servers are asked for.

    python3 tests/gpu/serve/reference.py MODEL OUTPUT.json

Transformers gives the two latent norms an eps of 1e-6 whatever the configuration says; it is
corrected here. Prompts are read in chunks over a cache, so that 12,000 tokens need little memory.
The greedy continuation of each prompt is what every server then decodes, so that all of them are
compared on the same tokens.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parents[1]))
    __package__ = "serve"

from . import prompts

if TYPE_CHECKING:
    import torch

CHUNK = 1000


def load(folder: Path, device: str) -> Any:  # noqa: ANN401
    """The model in float32, its norms' eps as configured."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    for layer in loaded.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = loaded.config.rms_norm_eps
    return loaded.to(device).eval()


def score(loaded: Any, ids: list[int], count: int) -> dict[str, Any]:  # noqa: ANN401
    """Log-probability of each token given those before it, and `count` greedy tokens with theirs.

    Returns: `prompt` (len(ids) − 1 values), `tokens` and `logp` (count each).
    """
    import torch

    device = next(loaded.parameters()).device
    prompt: list[float] = []
    tokens: list[int] = []
    chosen: list[float] = []
    cache: Any = None

    def read(part: list[int]) -> torch.Tensor:
        nonlocal cache
        given = torch.tensor([part], device=device)
        answer = loaded(input_ids=given, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        return torch.log_softmax(answer.logits[0].double(), -1)

    with torch.inference_mode():
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            rows = read(part)
            targets = torch.tensor(ids[start + 1 : start + CHUNK + 1], device=device)
            prompt += rows[: len(targets)].gather(1, targets[:, None])[:, 0].tolist()
        while len(tokens) < count:
            value, token = rows[-1].max(-1)
            tokens.append(int(token))
            chosen.append(float(value))
            if len(tokens) < count:
                rows = read(tokens[-1:])
    return {"prompt": rounded(prompt), "tokens": tokens, "logp": rounded(chosen)}


def rounded(values: list[float]) -> list[float]:
    """To 1e-5, far under what is compared."""
    return [round(value, 5) for value in values]


def main(folder: str, output: str) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load(Path(folder), device)
    answers = {}
    for name, ids in prompts.single().items():
        start = time.monotonic()
        answers[name] = score(loaded, ids, prompts.CONTINUED)
        print(f"reference {name}: {time.monotonic() - start:.1f} s", flush=True)
    Path(output).write_text(json.dumps({"device": device, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
