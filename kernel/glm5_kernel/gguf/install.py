"""Puts our loader and config parser in the place of vllm-gguf-plugin's."""

from __future__ import annotations

import logging
from types import ModuleType

from glm5_kernel.compat import names

logger = logging.getLogger("vllm.glm5_kernel")

PLUGIN = "vllm_gguf_plugin"
TRIGGER = "vllm_gguf_plugin.plugin"
"""The module by which the plugin registers itself; ours follows once it has been imported."""


def install_loader(_plugin: ModuleType) -> None:
    """Register our loader for the load format `gguf`, and our parser for its configs.

    The plugin leaves in place what is built on its own classes, so the order of the two
    registrations does not matter.
    """
    problems = names.missing(names.GGUF)
    if problems:
        logger.error("glm5_kernel: GGUF is left to vllm-gguf-plugin: %s", "; ".join(problems))
        return
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.transformers_utils.config import register_config_parser

    from glm5_kernel.gguf.config_parser import CompletingConfigParser
    from glm5_kernel.gguf.loader import PlannedGGUFLoader

    register_model_loader("gguf")(PlannedGGUFLoader)
    register_config_parser("gguf")(CompletingConfigParser)
