"""`python -m glm5_kernel doctor`: what this host has, what was registered, whether it computes.

The program itself imports neither torch nor vLLM. What could crash, hang or poison a CUDA context
runs in processes of its own (`child`), so that there is always an answer.
"""

from __future__ import annotations

from glm5_kernel.doctor.command import main

__all__ = ["main"]
