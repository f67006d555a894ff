"""What the plugin did in this process, as data: for the log, the doctor and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["attention", "indexer", "gguf"]
State = Literal["registered", "stock", "off", "refused"]


@dataclass(frozen=True)
class Part:
    """One of the three things that the plugin supplies.

    Args:
        state: `registered` (ours is in place and will be chosen where it should be), `stock` (left
            to vLLM, for a reason), `off` (switched off by the user), `refused` (this vLLM lacks
            what it needs, or its variable means nothing).
        reason: one sentence for people.
    """

    name: Name
    state: State
    reason: str


@dataclass(frozen=True)
class Registration:
    """The outcome of `register()`.

    Args:
        vllm: the version found, None where there is no vLLM.
        message: one line: what was done, or why nothing was.
    """

    vllm: str | None
    message: str
    parts: tuple[Part, ...]

    def part(self, name: Name) -> Part:
        return next(part for part in self.parts if part.name == name)
