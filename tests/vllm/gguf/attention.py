"""An attention backend that is made and never asked to compute."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionBackend, MLAAttentionImpl


class NoImpl(MLAAttentionImpl):  # type: ignore[misc]
    """Takes any arguments."""

    is_sparse = True

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        self.dcp_world_size = 1

    def forward_mha(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401
        raise NotImplementedError

    def forward_mqa(self, *_args: Any, **_kwargs: Any) -> Any:  # noqa: ANN401
        raise NotImplementedError


class NoBackend(AttentionBackend):  # type: ignore[misc]
    """Names an implementation and no more."""

    @staticmethod
    def get_name() -> str:
        return "NONE"

    @staticmethod
    def get_impl_cls() -> type[NoImpl]:
        return NoImpl

    @staticmethod
    def get_builder_cls() -> Any:  # noqa: ANN401
        raise NotImplementedError

    @staticmethod
    def get_kv_cache_shape(*_args: Any, **_kwargs: Any) -> tuple[int, ...]:  # noqa: ANN401
        raise NotImplementedError
