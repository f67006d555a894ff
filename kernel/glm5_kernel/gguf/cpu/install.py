"""Puts the CPU's parts in place: dense attention, and operations where Triton is not installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any

from glm5_kernel.compat import names

logger = logging.getLogger("vllm.glm5_kernel")

PLATFORM = "vllm.platforms.cpu"
"""The module whose platform every config passes through."""
OPERATIONS = "vllm_gguf_plugin.ops"
PLUGIN = "vllm_gguf_plugin"


def install_dense(platform: ModuleType) -> None:
    """Have vLLM's CPU platform make GLM-5 dense before it looks at a config."""
    problems = names.missing(names.CPU)
    if problems:
        logger.error("glm5_kernel: GLM-5 is not made dense: %s", "; ".join(problems))
        return
    owner = platform.CpuPlatform
    original = owner.check_and_update_config.__func__
    if getattr(original, "glm5_kernel", False):
        return

    @functools.wraps(original)
    def check_and_update_config(cls: type, vllm_config: Any) -> None:  # noqa: ANN401
        from glm5_kernel.gguf.cpu.dense import make_dense

        make_dense(vllm_config)
        original(cls, vllm_config)

    check_and_update_config.glm5_kernel = True  # type: ignore[attr-defined]
    owner.check_and_update_config = classmethod(check_and_update_config)


def needs_operations() -> bool:
    """Whether vllm-gguf-plugin cannot be imported as it is: it wants Triton."""
    return importlib.util.find_spec("triton") is None


def put_operations() -> None:
    """Have vllm-gguf-plugin find our operations where its own module with kernels would be."""
    from glm5_kernel.gguf.cpu import ops

    sys.modules[OPERATIONS] = ops
    plugin: Any = importlib.import_module(PLUGIN)
    plugin.ops = ops


def install_operations() -> None:
    """Give vllm-gguf-plugin our operations for its kernels, and register it.

    vLLM imports all plugins before it calls the first, and goes on when one fails: this one has
    failed for want of Triton. Its registration may be repeated.
    """
    put_operations()
    plugin: Any = importlib.import_module(PLUGIN)
    plugin.register()
    from vllm.model_executor.layers.quantization import register_quantization_config

    from glm5_kernel.gguf.cpu.quantization import CpuGGUFConfig

    register_quantization_config("gguf")(CpuGGUFConfig)
