"""Puts our loader in the place of vllm-gguf-plugin's."""

from __future__ import annotations

import logging
from types import ModuleType

from glm5_kernel.compat import names

logger = logging.getLogger("vllm.glm5_kernel")

PLUGIN = "vllm_gguf_plugin"
TRIGGER = "vllm_gguf_plugin.plugin"
"""The module by which the plugin registers itself; ours follows once it has been imported."""


def install_loader(_plugin: ModuleType) -> None:
    """Register our loader for the load format `gguf`.

    The plugin leaves a loader in place that is built on its own, so the order of the two
    registrations does not matter.
    """
    problems = names.missing(names.GGUF)
    if problems:
        logger.error("glm5_kernel: GGUF is left to vllm-gguf-plugin: %s", "; ".join(problems))
        return
    from vllm.model_executor.model_loader import register_model_loader

    from glm5_kernel.gguf.loader import PlannedGGUFLoader

    register_model_loader("gguf")(PlannedGGUFLoader)
