"""The model in a folder, where there is exactly one."""

from __future__ import annotations

from pathlib import Path

from glm5_kernel.gguf.shards import SPLIT_NAME


def only_model(path: Path) -> Path | None:
    """A file of the only GGUF model that `path` is or holds; None where it holds none or several.

    The shards of a split are one model; a projector for images (`mmproj…`) is none.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        return None
    models: dict[str, Path] = {}
    for file in sorted(path.glob("*.gguf")):
        if "mmproj" in file.name or not file.is_file():
            continue
        match = SPLIT_NAME.fullmatch(file.name)
        models.setdefault(f"{match['stem']} of {match['count']}" if match else file.name, file)
    return next(iter(models.values())) if len(models) == 1 else None
