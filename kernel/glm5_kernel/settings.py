"""What the user decides by environment variables."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from glm5_kernel.gguf.errors import printable
from glm5_kernel.registration import Name

Choice = Literal["auto", "stock", "triton"]
Switch = Literal["auto", "stock"]
_Value = TypeVar("_Value", bound=str)


class SettingError(ValueError):
    """A model needs a part whose variable has a value that means nothing."""


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
        problems: by part, what is wrong with its variable; the part's own value is then auto. Only
            a model that needs the part is refused: another one is served as if it were not there.
    """

    attention: Switch = "auto"
    indexer: Choice = "auto"
    gguf: Switch = "auto"
    problems: Mapping[Name, str] = field(default_factory=dict)


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an environment. What means nothing is told in `problems`."""
    problems: dict[Name, str] = {}
    attention: Switch = _one_of(environment, "attention", get_args(Switch), problems)
    indexer: Choice = _one_of(environment, "indexer", get_args(Choice), problems)
    gguf: Switch = _one_of(environment, "gguf", get_args(Switch), problems)
    _misspelt(environment, problems)
    return Settings(attention, indexer, gguf, problems)


def _misspelt(environment: Mapping[str, str], problems: dict[Name, str]) -> None:
    """Variables that are almost one of ours; others that begin with GLM5_ may be anybody's."""
    parts: tuple[Name, ...] = ("attention", "indexer", "gguf")
    ours = {f"GLM5_{part.upper()}": part for part in parts}
    for variable in environment:
        if variable.startswith("GLM5_") and variable not in ours:
            meant = difflib.get_close_matches(variable, ours, 1, 0.85)
            if meant:
                problems.setdefault(
                    ours[meant[0]], f"{printable(variable):.60} is no variable: {meant[0]} is"
                )


def _one_of(
    environment: Mapping[str, str],
    part: Name,
    allowed: tuple[_Value, ...],
    problems: dict[Name, str],
) -> _Value:
    """The value of a part's variable, or the first of those allowed."""
    variable = f"GLM5_{part.upper()}"
    found = environment.get(variable, "").strip().lower() or allowed[0]
    for value in allowed:
        if value == found:
            return value
    problems[part] = f"{variable}={printable(found):.60}: must be one of {', '.join(allowed)}"
    return allowed[0]
