"""Everything between a path and a plan: files found and checked, config completed, plan made."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

from glm5_kernel.gguf.cpu.dense import INDEXER_KEYS, is_dense
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.hf_config import complete, stated_config
from glm5_kernel.gguf.hyperparameters import (
    Hyperparameters,
    IndexerPattern,
    contradictions,
    indexer_pattern,
)
from glm5_kernel.gguf.inspect import hyperparameters_of
from glm5_kernel.gguf.names import indexer_layers
from glm5_kernel.gguf.plan import Plan, make_plan
from glm5_kernel.gguf.shards import Model, open_model

logger = logging.getLogger("vllm.glm5_kernel")

DRAFT_TYPES = ("deepseek_mtp",)
MODEL_TYPES = ("glm_moe_dsa", "deepseek_v3", *DRAFT_TYPES)
"""Of HF configs whose files are loaded here."""


FINGERPRINT = "gguf_fingerprint"
"""Key of the HF config. vLLM keeps compiled graphs by a hash of the config, and in a graph the
quantisation types are constants: another file under the same path must not be given them."""


@dataclass(frozen=True)
class Source:
    """A model's files and what they say.

    Attributes:
        model: the files.
        hp: hyperparameters.
        pattern: which layers run their own indexer; None without one.
    """

    model: Model
    hp: Hyperparameters
    pattern: IndexerPattern | None


def open_source(path: str, stated: dict[str, Any]) -> Source:
    """Open a model and check it against config.json.

    Args:
        path: any of its files.
        stated: config.json as it stands.

    Raises:
        GgufError: files that cannot be used, or every contradiction between the two.
    """
    model = open_model(path)
    hp = hyperparameters_of(model)
    pattern = indexer_pattern(hp, indexer_layers(model.tensors), stated)
    problems = contradictions(stated, hp, pattern)
    if problems:
        raise GgufError([f"{model.paths[0]}: config.json does not belong to it", *problems])
    return Source(model, hp, pattern)


def prepare(path: str, model_config: Any, tp: int) -> Plan:  # noqa: ANN401
    """Open a model, complete vLLM's config for it in place, and plan its loading.

    Args:
        path: any of its files.
        model_config: vLLM's, of the model itself or of its MTP draft.
        tp: ranks of tensor parallelism.

    Raises:
        GgufError: all that is in the way, told at once.
    """
    config = model_config.hf_config
    folder = model_config.hf_config_path or model_config.model
    stated = stated_config(folder, model_config.hf_overrides)
    source = open_source(path, stated)
    dense = is_dense(config)
    leave = INDEXER_KEYS if dense else frozenset()
    changed = complete(config, stated, source.hp, source.pattern, leave)
    config.update({FINGERPRINT: fingerprint(source.model)})
    if changed:
        logger.info("glm5_kernel: config completed from the file: %s", ", ".join(changed))
    draft = config.model_type in DRAFT_TYPES
    indexer = not dense and getattr(config, "index_topk", None) is not None
    return make_plan(source.model, source.hp, source.pattern, draft=draft, tp=tp, indexer=indexer)


def fingerprint(model: Model) -> str:
    """A digest of every tensor's name, dimensions and type."""
    rows = sorted((name, each.info.ne, each.info.number) for name, each in model.tensors.items())
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
