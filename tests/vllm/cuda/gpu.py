"""A GPU of any capability, as vLLM asks its platform about it."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class Gpu(NonNvmlCudaPlatform):
    """The CUDA platform with a capability that a test chooses."""

    capability = DeviceCapability(9, 0)

    @classmethod
    def choose(cls, major: int, minor: int) -> None:
        cls.capability = DeviceCapability(major, minor)

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ANN401, ARG003
        return cls.capability

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        return "a GPU that is not there"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:  # noqa: ARG003
        return 132

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False


class FakeGpu(Gpu):
    """The platform of these tests' process: the plugin puts its selection here."""
