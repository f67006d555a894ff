"""A platform on which vLLM's models are made but not run."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.platforms.interface import DeviceCapability, UnspecifiedPlatform


class NoPlatform(UnspecifiedPlatform):
    """Tensors lie on the CPU; attention is a stand-in."""

    device_type = "cpu"
    dispatch_key = "CPU"
    supported_quantization: ClassVar[list[str]] = []

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ANN401, ARG003
        return DeviceCapability(12, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        return "no device"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:  # noqa: ARG003
        return 96 << 30

    @classmethod
    def is_out_of_tree(cls) -> bool:
        return True

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:  # noqa: ANN401
        vllm_config.parallel_config.worker_cls = "none"

    @classmethod
    def get_attn_backend_cls(cls, *_args: Any, **_kwargs: Any) -> str:  # noqa: ANN401
        return "tests.vllm.gguf.attention.NoBackend"
