"""Automatic selection: ours on SM120 and where no stock backend is valid, never against a choice.

vLLM asks its platform which backend serves a layer (`get_attn_backend_cls`, vLLM 0.26.0,
`platforms/cuda.py`). The question is answered here where the user named no backend and the model is
sparse; every other question goes to the platform unchanged.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glm5_kernel.attention import CLASS_PATH, NAME
from glm5_kernel.compat import names
from glm5_kernel.report import report_attention
from glm5_kernel.settings import Settings

logger = logging.getLogger("vllm.glm5_kernel")

Ask = Callable[..., str]


@dataclass(frozen=True)
class Question:
    """What vLLM wants to know about one layer."""

    capability: tuple[int, ...]
    selector: Any
    ours_invalid: tuple[str, ...]


def install(platform: type, settings: Settings) -> None:
    """Put the selection in front of a platform class's own; a second time changes nothing."""
    stock = platform.get_attn_backend_cls  # type: ignore[attr-defined]
    if getattr(stock, "_glm5_kernel", False):
        return

    @functools.wraps(stock)
    def get_attn_backend_cls(
        cls: type,
        selected_backend: Any,  # noqa: ANN401
        attn_selector_config: Any,  # noqa: ANN401
        num_heads: int | None = None,
    ) -> str:
        ask = functools.partial(
            stock.__func__, cls, selected_backend, attn_selector_config, num_heads
        )
        if not attn_selector_config.use_sparse:
            return str(ask())
        if selected_backend is None and settings.attention == "auto":
            path = _automatic(_question(cls, attn_selector_config), ask)
        else:
            path = str(ask())
        _report_stock(path, attn_selector_config)
        return path

    get_attn_backend_cls._glm5_kernel = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)  # type: ignore[attr-defined]


def _question(platform: Any, selector: Any) -> Question:  # noqa: ANN401
    capability = platform.get_device_capability()
    invalid = _missing() or _invalid(capability, selector)
    return Question(tuple(capability), selector, tuple(invalid))


@functools.cache
def _missing() -> tuple[str, ...]:
    return tuple(names.missing(names.ATTENTION))


def _invalid(capability: Any, selector: Any) -> list[str]:  # noqa: ANN401
    from glm5_kernel.attention.backend import TritonMLASparseBackend

    invalid: list[str] = TritonMLASparseBackend.validate_configuration(
        device_capability=capability, **selector._asdict()
    )
    return invalid


def _automatic(question: Question, ask: Ask) -> str:
    """The class path to use.

    Raises:
        ValueError: no backend is valid, with our reasons beside vLLM's.
    """
    if question.capability[0] == 12 and not question.ours_invalid:
        logger.info("Using %s attention backend (glm5-kernel) on capability 12.x", NAME)
        return CLASS_PATH
    reasons = ", ".join(question.ours_invalid)
    try:
        path = str(ask())
    except ValueError as error:
        if question.ours_invalid:
            raise ValueError(f"{error} {NAME}: [{reasons}].") from error
        logger.info("Using %s attention backend (glm5-kernel): no stock one is valid", NAME)
        return CLASS_PATH
    if question.capability[0] == 12:
        logger.warning("glm5_kernel: attention is left to stock vLLM: %s", reasons)
    return path


def _report_stock(path: str, selector: Any) -> None:  # noqa: ANN401
    """Our own backend reports for itself, once it knows what "auto" is."""
    if path == CLASS_PATH:
        return
    from importlib import import_module

    module, _, name = path.rpartition(".")
    backend = getattr(import_module(module), name)
    report_attention(backend.get_name(), selector.kv_cache_dtype or "auto", selector.dtype)
