"""vLLM's config parser for `--config-format gguf`: config.json, completed from the file.

It runs where the engine's arguments are read, so that a file that cannot be used, or one that
config.json contradicts, is refused before an engine starts. The worker's loader checks again, with
the file that it was given.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from vllm_gguf_plugin.config_parser import GGUFConfigParser

from glm5_kernel.gguf.folders import only_model
from glm5_kernel.gguf.hf_config import complete
from glm5_kernel.gguf.prepare import MODEL_TYPES, open_source

logger = logging.getLogger("vllm.glm5_kernel")


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
            GgufError: the only model in the folder cannot be used, or contradicts config.json.
        """
        stated, config = super().parse(model, trust_remote_code, revision, code_revision, **kwargs)
        path = only_model(Path(model))
        if config.model_type not in MODEL_TYPES or path is None:
            return stated, config
        source = open_source(str(path), stated)
        complete(config, stated, source.hp, source.pattern)
        # The plugin looks for the head in one file of a split alone; these models are untied.
        config.update({"tie_word_embeddings": False})
        return stated, config
