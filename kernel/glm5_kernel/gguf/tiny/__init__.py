"""`python -m glm5_kernel make-tiny DIR`: a tiny, valid GLM-5 in GGUF, with golden tokens."""

from glm5_kernel.gguf.tiny.command import main

__all__ = ["main"]
