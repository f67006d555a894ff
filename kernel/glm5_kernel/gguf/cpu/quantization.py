"""vllm-gguf-plugin's quantisation config as one that other processes can be given.

vLLM sends it to the engine and its workers, which read it before they call any plugin. Reading it
imports this module, and this module makes the plugin one that can be imported.
"""

from __future__ import annotations

from glm5_kernel.gguf.cpu.install import needs_operations, put_operations

if needs_operations():
    put_operations()

from vllm_gguf_plugin.quantization import GGUFConfig


class CpuGGUFConfig(GGUFConfig):
    """The same; only where it is found differs."""
