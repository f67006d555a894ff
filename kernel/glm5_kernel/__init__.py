"""GPU-side part of glm5-deploy: a vLLM plugin that serves sparse MLA models such as GLM-5.

Importing this package needs neither torch, triton nor vllm; its parts import them when used.
"""

from __future__ import annotations

__version__ = "0.1.0"


def register() -> None:
    """vLLM's entry point (group `vllm.general_plugins`), called in every process; idempotent."""
    from glm5_kernel.plugin import register as register_parts

    register_parts()
