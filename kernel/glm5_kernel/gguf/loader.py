"""vLLM's model loader for GLM-5 and DeepSeek-V3 in GGUF.

It stands in the place of vllm-gguf-plugin's for the load format `gguf` and leaves other models to
it. Built on the plugin's loader, so that a model is named in all the ways that it knows.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.distributed import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
)
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm_gguf_plugin.loader import GGUFModelLoader

from glm5_kernel.gguf.accounting import left_out_by_name, summary
from glm5_kernel.gguf.filling import fill_all
from glm5_kernel.gguf.methods import PlannedGGUFConfig
from glm5_kernel.gguf.plan import Plan
from glm5_kernel.gguf.prepare import DRAFT_TYPES, MODEL_TYPES, prepare
from glm5_kernel.gguf.progress import Progress
from glm5_kernel.gguf.targets import find_targets

logger = logging.getLogger("vllm.glm5_kernel")


class PlannedGGUFLoader(GGUFModelLoader):
    """Loads a model whose every tensor is planned beforehand; others go to the plugin's loader."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:  # noqa: ANN401
        """Make the model, fill it with this rank's part of the files, and get it ready.

        Raises:
            GgufError: files that cannot be used, a config that contradicts them, parameters that
                nothing fills or tensors without a place; everything in one message.
        """
        if model_config.hf_config.model_type not in MODEL_TYPES:
            return super().load_model(vllm_config, model_config, prefix)
        path = self._path(model_config, vllm_config.model_config)
        plan = prepare(path, model_config, get_tensor_model_parallel_world_size())
        self._check_draft(vllm_config, model_config)
        vllm_config.quant_config = PlannedGGUFConfig(plan)
        device = torch.device(vllm_config.device_config.device)
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = initialize_model(
                    vllm_config=vllm_config, model_config=model_config, prefix=prefix
                )
            self._fill(model, plan)
            process_weights_after_loading(model, model_config, device)
        return model.eval()

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:  # noqa: ANN401
        """Fill a model, made by `load_model`, anew."""
        if model_config.hf_config.model_type not in MODEL_TYPES:
            super().load_weights(model, model_config)
            return
        path = self._path(model_config, None)
        self._fill(model, prepare(path, model_config, get_tensor_model_parallel_world_size()))

    def _check_draft(self, vllm_config: Any, model_config: Any) -> None:  # noqa: ANN401
        """Refuse a draft that cannot be loaded before the model itself is, which takes minutes."""
        draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
        if draft is None or draft is model_config or draft.hf_config.model_type not in DRAFT_TYPES:
            return
        path = self._path(draft, vllm_config.model_config)
        prepare(path, draft, get_tensor_model_parallel_world_size())

    def _path(self, model_config: Any, target: Any) -> str:  # noqa: ANN401
        """The file; a draft's config names only a folder, and its weights are the target's."""
        named = model_config.model_weights or target is None or not target.model_weights
        path: str = self._prepare_weights(model_config if named else target)
        return path

    def _fill(self, model: torch.nn.Module, plan: Plan) -> None:
        targets = find_targets(model, plan, all_layers=get_pp_group().world_size == 1)
        first = get_tensor_model_parallel_rank() == 0

        def progress(total: int) -> Progress:
            return Progress(len(plan.paths), total, logger.info if first else None)

        fill_all(targets.fills, plan.paths, plan.hp, progress)
        if first:
            logger.info("glm5_kernel: %s", summary(plan))
            logger.debug("glm5_kernel: tensors left out:\n%s", left_out_by_name(plan))
