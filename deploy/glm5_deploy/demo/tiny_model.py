"""A tiny GLM-5 in GGUF, with what the reference answers: the same bytes for every demo.

Made by ``python -m glm5_kernel make-tiny deploy/glm5_deploy/demo/model --dims demo --layers 2``:
random weights in Q8_0 (3.2 MB), config, tokenizer, and `golden.json` with the greedy tokens of
transformers on the same weights.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("model")
"""It is synced to the host from here."""
