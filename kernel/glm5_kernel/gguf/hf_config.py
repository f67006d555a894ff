"""Completes vLLM's HF config from the file, in place, and says where the two contradict.

What config.json states is compared with the file; what it leaves out is set from the file, over
whatever default transformers has put there. Kinds of keys that vLLM sets for its own purpose (the
class of an MTP draft) stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glm5_kernel.gguf.hyperparameters import (
    Hyperparameters,
    IndexerPattern,
    complete_config,
    hf_config,
)

STAYS = frozenset({"model_type", "architectures", "num_key_value_heads"})
"""vLLM makes these what it needs."""

PATTERN_KEYS = ("index_topk_pattern", "indexer_types", "index_topk_freq")


def stated_config(folder: str | Path, overrides: object = None) -> dict[str, Any]:
    """config.json as it stands, with what the user overrides; empty where there is none.

    Args:
        folder: a local folder, or a name on the Hugging Face hub.
        overrides: vLLM's `hf_overrides`; a function counts for nothing.
    """
    path = Path(folder)
    path = path.parent if path.is_file() else path
    if (path / "config.json").is_file():
        config: dict[str, Any] = json.loads((path / "config.json").read_text())
    elif path.is_dir():
        config = {}
    else:
        config = _of_hub(str(folder))
    return config | dict(overrides) if isinstance(overrides, Mapping) else config


def _of_hub(name: str) -> dict[str, Any]:
    from transformers import PretrainedConfig

    found, _ = PretrainedConfig.get_config_dict(name)
    return dict(found)


def complete(
    config: Any,  # noqa: ANN401
    stated: Mapping[str, Any],
    hp: Hyperparameters,
    pattern: IndexerPattern | None,
    leave: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Set on `config` (a PretrainedConfig) all that config.json leaves out.

    Args:
        config: changed in place.
        stated: config.json.
        hp: the file's hyperparameters.
        pattern: which layers run their own indexer.
        leave: keys that stay as they are.

    Returns:
        Names of the keys that were set and differ from before.
    """
    changed = []
    for key, value in complete_config(stated, hp, pattern).items():
        if key in STAYS | leave or key.startswith("rope_") or key not in hf_config(hp, pattern):
            continue
        if stated.get(key) is not None and key not in PATTERN_KEYS:
            continue
        if key in hp.assumed and getattr(config, key, None) is not None:
            # Neither says so: transformers' default is that of the architecture.
            continue
        if getattr(config, key, None) != value:
            changed.append(key)
            config.update({key: value})
    if _complete_rope(config, stated, hp):
        changed.append("rope_parameters")
    return tuple(changed)


def _complete_rope(config: Any, stated: Mapping[str, Any], hp: Hyperparameters) -> bool:  # noqa: ANN401
    """vLLM 0.26 reads `rope_parameters` alone; transformers' default has a theta of 10,000."""
    spelled = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    known = {*spelled, *({"rope_type"} if "type" in spelled else ())}
    known |= {"rope_theta"} if stated.get("rope_theta") is not None else set()
    rope = dict(getattr(config, "rope_parameters", None) or {})
    before = dict(rope)
    for key, value in complete_config(stated, hp)["rope_parameters"].items():
        if key not in known or key not in rope:
            rope[key] = value
    if rope == before:
        return False
    config.update({"rope_parameters": rope})
    if hasattr(config, "rope_theta"):
        config.update({"rope_theta": rope["rope_theta"]})
    return True
