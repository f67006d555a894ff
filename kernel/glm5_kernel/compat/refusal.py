"""Ends the start of a model that needs a part whose variable has a value that means nothing.

Put in place only where there is such a variable. vLLM hands every config to its platform before an
engine starts (`check_and_update_config`), so the server itself says what is wrong.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from glm5_kernel.compat import names
from glm5_kernel.compat.hooks import when_imported
from glm5_kernel.registration import Name
from glm5_kernel.settings import SettingError

logger = logging.getLogger("vllm.glm5_kernel")

PLATFORMS = {"vllm.platforms.cuda": "CudaPlatformBase", "vllm.platforms.cpu": "CpuPlatform"}
"""Modules and the class in each that every config passes through."""


def refuse_models(problems: Mapping[Name, str]) -> None:
    """Warn of each problem now, and raise it where a model's config needs that part."""
    for problem in problems.values():
        logger.warning("glm5_kernel: %s; a model that needs it is refused", problem)
    if problems:
        for module, owner in PLATFORMS.items():
            when_imported(module, functools.partial(_guard, owner, problems))


def _guard(owner_name: str, problems: Mapping[Name, str], platform: ModuleType) -> None:
    missing = names.missing(names.REFUSAL)
    if missing:
        logger.error("glm5_kernel: no model is refused for it: %s", "; ".join(missing))
        return
    owner = getattr(platform, owner_name)
    original = owner.check_and_update_config.__func__

    @functools.wraps(original)
    def check_and_update_config(cls: type, vllm_config: Any) -> None:  # noqa: ANN401
        found = [problems[part] for part in needed(vllm_config) if part in problems]
        if found:
            raise SettingError("; ".join(found))
        original(cls, vllm_config)

    owner.check_and_update_config = classmethod(check_and_update_config)


def needed(vllm_config: Any) -> tuple[Name, ...]:  # noqa: ANN401
    """The parts that the model of a vLLM config would use, were they left to decide."""
    model = vllm_config.model_config
    if model is None:
        return ()
    from glm5_kernel.gguf.prepare import MODEL_TYPES

    sparse: tuple[Name, ...] = ("attention", "indexer")
    parts: tuple[Name, ...] = sparse if hasattr(model.hf_text_config, "index_topk") else ()
    ours = model.hf_config.model_type in MODEL_TYPES
    if ours and str(vllm_config.load_config.load_format) == "gguf":
        parts += ("gguf",)
    return parts
