"""A model's header, read where the files are: here, on the host, or on the host they come from."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from glm5_deploy.errors import Glm5Error
from glm5_deploy.hosts.host import Host
from glm5_deploy.kernel_package import require_kernel_package
from glm5_deploy.memory.plan import ModelShape

if TYPE_CHECKING:
    from glm5_kernel.gguf.inspect import Inspection
    from glm5_kernel.gguf.shards import Files


_REASONS = 3
"""Of a kind that hundreds of tensors may share."""


class HeaderError(Glm5Error):
    """The model's files cannot be read as GGUF."""


class HostFiles:
    """Files of a host over SFTP, for glm5-kernel's reader; one thread at a time."""

    def __init__(self, host: Host) -> None:
        self._host, self._lock = host, threading.Lock()

    def size(self, path: str) -> int | None:
        with self._lock:
            return self._host.size(PurePosixPath(path))

    def read_at(self, path: str) -> Any:  # noqa: ANN401  # glm5_kernel.gguf.reader.ReadAt
        def read(offset: int, length: int) -> bytes:
            with self._lock:
                return self._host.read_at(PurePosixPath(path), offset, length)

        return read


@dataclass(frozen=True)
class Place:
    """Where a model's file lies.

    Args:
        path: the file that vLLM is told to load.
        host: None: this machine.
    """

    path: str
    host: Host | None = None

    @property
    def label(self) -> str:
        return self.path if self.host is None else f"{self.host.name}:{self.path}"


def inspect_place(place: Place, *, tps: tuple[int, ...] = (), mtp: bool = False) -> Inspection:
    """What the headers of a model tell; nothing else of the files is read.

    Raises:
        HeaderError: what is wrong with the files.
        UnreachableError: the host is away.
    """
    require_kernel_package()
    from glm5_kernel.gguf.errors import GgufError
    from glm5_kernel.gguf.inspect import POWERS, inspect_model
    from glm5_kernel.gguf.shards import LocalFiles, open_model

    files: Files = LocalFiles() if place.host is None else HostFiles(place.host)
    try:
        model = open_model(place.path, files)
        wanted = tuple(sorted({*POWERS, *tps}))
        return inspect_model(model, config=_config(place), tps=wanted, mtp=mtp)
    except GgufError as error:
        raise HeaderError("\n".join(error.problems), "glm5-deploy model inspect shows it") from None
    except (ValueError, OSError) as error:
        raise HeaderError(f"{place.label}: {error}") from error


def exists(place: Place) -> bool:
    """Whether the file is there.

    Raises:
        CommandFailedError: the login user may not look there, or the host has no SFTP.
    """
    if place.host is None:
        return Path(place.path).is_file()
    return place.host.size(PurePosixPath(place.path)) is not None


def _config(place: Place) -> dict[str, Any]:
    """config.json beside it: which layers share an indexer may stand there alone."""
    path = PurePosixPath(place.path).parent / "config.json"
    try:
        if place.host is None:
            text = Path(path).read_bytes()
        else:
            size = place.host.size(path)
            text = b"{}" if size is None else place.host.read_at(path, 0, min(size, 1 << 20))
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shape_of(found: Inspection, tp: int) -> ModelShape:
    """What the plan needs, for so many GPUs.

    Raises:
        HeaderError: the weights cannot be cut among so many; with the reasons.
    """
    hp = found.hp
    weights = {each.tp: each.weights for each in found.memory}
    if tp not in weights:
        reasons = found.refused.get(tp, ()) or ("no such plan was made",)
        more = f" and {len(reasons) - _REASONS} more like these" * (len(reasons) > _REASONS)
        why = "; ".join(reasons[:_REASONS]) + more
        works = ", ".join(map(str, found.possible))
        raise HeaderError(
            f"the model cannot be cut among {tp} GPUs: {why}", f"tensor-parallel-size: {works}"
        )
    kv, dim = found.memory[0].kv, 0 if hp.indexer is None else hp.indexer.head_dim
    return ModelShape(
        tp=tp,
        weights=weights[tp],
        kv={"bf16": kv.bf16, "fp8": kv.fp8},
        possible=weights,
        hidden=hp.hidden,
        heads=hp.heads,
        head_values=hp.nope + hp.v,
        vocab=hp.vocab,
        intermediate=hp.intermediate,
        moe_intermediate=hp.moe_intermediate,
        experts_used=hp.experts_used,
        context=hp.context,
        indexer_row=dim + dim // 128 * 4,
        topk=0 if hp.indexer is None else hp.indexer.topk,
        rope=hp.rope,
    )
