"""vLLM's config parser for `--config-format gguf`: config.json, completed from the file.

It runs where the engine's arguments are read, so that a file that cannot be used, or one that
config.json contradicts, is refused before an engine starts. The worker's loader checks again, with
the file that it was given.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_gguf_plugin.config_parser import GGUFConfigParser

from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.folders import only_model
from glm5_kernel.gguf.hf_config import complete
from glm5_kernel.gguf.prepare import DRAFT_TYPES, MODEL_TYPES, open_source
from glm5_kernel.gguf.reader import read_file

logger = logging.getLogger("vllm.glm5_kernel")

GLM5 = "glm-dsa"
"""The architecture that no model but GLM-5 has; `deepseek2` files are of many."""


class CompletingConfigParser(GGUFConfigParser):
    """The plugin's parser; what config.json leaves out is set from the GGUF beside it."""

    def parse(
        self,
        model: str | Path,
        trust_remote_code: bool,
        revision: str | None = None,
        code_revision: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[dict[str, Any], Any]:
        """config.json as a dict, and the config that vLLM uses.

        Args:
            model: a GGUF file, the folder of one, or a name on the Hugging Face hub.
            trust_remote_code: as in vLLM, like all that follow.

        Raises:
            GgufError: the only model in the folder cannot be used, has no config.json or
                contradicts it, or has no MTP block where vLLM asks for the config of its draft.
        """
        path = only_model(Path(model))
        if path is not None:
            _refuse_no_config(path)
        stated, config = super().parse(model, trust_remote_code, revision, code_revision, **kwargs)
        if path is None:
            return stated, config
        if config.model_type not in MODEL_TYPES:
            _refuse_other_config(path, config.model_type)
            return stated, config
        source = open_source(str(path), stated)
        if not source.hp.mtp_layers and _is_draft(config, kwargs.get("hf_overrides")):
            raise GgufError(
                f"{source.model.paths[0]}: speculative decoding by MTP is asked for, but the file "
                "has no MTP block; leave --speculative-config out, or take a file that has one"
            )
        complete(config, stated, source.hp, source.pattern)
        # The plugin looks for the head in one file of a split alone; these models are untied.
        config.update({"tie_word_embeddings": False})
        return stated, config


def _refuse_no_config(path: Path) -> None:
    """Refuse a GLM-5 without config.json, which transformers would call an unrecognized model."""
    if not (path.parent / "config.json").is_file() and _architecture(path) == GLM5:
        raise GgufError(
            f"{path.parent}: there is no config.json beside {path.name}; put config.json and the "
            "tokenizer of the original model there"
        )


def _refuse_other_config(path: Path, model_type: str) -> None:
    """Refuse a GLM-5 beside another model's config.json; other files are the plugin's."""
    if _architecture(path) == GLM5:
        raise GgufError(
            f"{path}: config.json does not belong to it: model_type is {model_type!r:.99} in "
            f"config.json, and the file's architecture is {GLM5}, which is {MODEL_TYPES[0]!r}"
        )


def _architecture(path: Path) -> object:
    """What the file says that it is; None where it cannot be read."""
    try:
        return read_file(path).metadata.get("general.architecture")
    except (GgufError, OSError):
        return None


def _is_draft(config: Any, overrides: object) -> bool:  # noqa: ANN401
    """Whether vLLM asks for an MTP draft's config: it then overrides the model's by a function."""
    if isinstance(overrides, Mapping) or not callable(overrides):
        return False
    return getattr(overrides(copy.deepcopy(config)), "model_type", None) in DRAFT_TYPES
