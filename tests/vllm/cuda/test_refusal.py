"""A variable that means nothing: where vLLM's own platform is asked, and what it then says."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from glm5_kernel.compat import names, refusal
from glm5_kernel.settings import SettingError, read_settings
from vllm.platforms import cuda

from tests.vllm.cuda.gpu import Gpu


def test_every_config_passes_through_the_class() -> None:
    """No class that vLLM makes its platform of has a function of its own there."""
    assert names.missing(names.REFUSAL) == []
    owner = getattr(cuda, refusal.PLATFORMS["vllm.platforms.cuda"])
    assert "check_and_update_config" in vars(owner)
    for made in (cuda.NvmlCudaPlatform, cuda.NonNvmlCudaPlatform):
        assert issubclass(made, owner)
        assert "check_and_update_config" not in vars(made)


def test_a_sparse_model_is_refused() -> None:
    platform: Any = ModuleType("platform")
    platform.Guarded = type("Guarded", (Gpu,), {"check_and_update_config": classmethod(_nothing)})
    problems = read_settings({"GLM5_INDEXER": "nonsense"}).problems
    refusal._guard("Guarded", problems, platform)
    model = SimpleNamespace(model_type="glm_moe_dsa", index_topk=2048)
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=model, hf_text_config=model),
        load_config=SimpleNamespace(load_format="auto"),
    )
    with pytest.raises(SettingError, match="GLM5_INDEXER=nonsense: must be one of auto, stock"):
        platform.Guarded.check_and_update_config(config)
    del model.index_topk
    platform.Guarded.check_and_update_config(config)


def _nothing(cls: type, vllm_config: Any) -> None:  # noqa: ANN401
    """As vLLM's own, for a config that needs no change."""
