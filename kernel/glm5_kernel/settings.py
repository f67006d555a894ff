"""What the user decides by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

Choice = Literal["auto", "stock", "triton"]
Switch = Literal["auto", "stock"]
_Value = TypeVar("_Value", bound=str)


class SettingError(ValueError):
    """A variable has a value that means nothing."""


@dataclass(frozen=True)
class Settings:
    """The choices of this process.

    Args:
        attention: `GLM5_ATTENTION`. auto: ours on capability 12.x and where no stock backend is
            valid; stock: only where `--attention-backend CUSTOM` asks for it.
        indexer: `GLM5_INDEXER`. auto: ours on capability 12.x and where DeepGEMM does not work;
            stock and triton: that one everywhere.
        gguf: `GLM5_GGUF`. auto: our adapter loads GLM-5 and DeepSeek-V3 files; stock: the GGUF
            plugin is left as it is.
    """

    attention: Switch = "auto"
    indexer: Choice = "auto"
    gguf: Switch = "auto"


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an environment.

    Raises:
        SettingError: a value is none of those allowed; the message names the variable and them.
    """
    attention: Switch = _one_of(environment, "GLM5_ATTENTION", get_args(Switch))
    indexer: Choice = _one_of(environment, "GLM5_INDEXER", get_args(Choice))
    gguf: Switch = _one_of(environment, "GLM5_GGUF", get_args(Switch))
    return Settings(attention, indexer, gguf)


def _one_of(environment: Mapping[str, str], name: str, allowed: tuple[_Value, ...]) -> _Value:
    found = environment.get(name, "").strip().lower() or "auto"
    for value in allowed:
        if value == found:
            return value
    raise SettingError(f"{name}={found}: must be one of {', '.join(allowed)}")
