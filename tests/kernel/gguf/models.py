"""Tiny models that the tests share, made once for each choice of arguments."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from glm5_kernel.gguf.tiny.reference import build_model, read_tensors
from glm5_kernel.gguf.tiny.spec import TinySpec, config, make_spec
from glm5_kernel.gguf.tiny.writer import write_companions, write_gguf

_FOLDER = tempfile.TemporaryDirectory(prefix="glm5-tiny-")


def silent(_: str) -> None:
    """Say nothing."""


@functools.cache
def made(
    variant: str = "glm5", split: int = 1, bare: bool = False, **choices: Any  # noqa: ANN401
) -> tuple[TinySpec, Path, tuple[Path, ...]]:  # fmt: skip
    """A micro model: its spec, folder and files. The folder is shared: leave it as it is."""
    spec = make_spec(variant, "micro", **choices)  # type: ignore[arg-type]
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    paths = write_gguf(folder, spec, split, silent)
    write_companions(folder, spec, bare=bare)
    return spec, folder, tuple(paths)


@functools.cache
def reference(**choices: Any) -> Any:  # noqa: ANN401
    """transformers' model of the same weights."""
    spec, _, paths = made(**choices)
    return build_model(config(spec), read_tensors(paths), spec.hp, spec.pattern)
