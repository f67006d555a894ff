"""SHA-256 manifests of model folders: where they come from and what they say."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm5_deploy.errors import UsageError


@dataclass(frozen=True)
class Manifest:
    """Names relative to the model's folder, with their digests; sizes where the files are here.

    Args:
        entries: name to SHA-256 in hexadecimal.
        sizes: name to bytes; empty where only a manifest is known.
    """

    entries: dict[str, str]
    sizes: dict[str, int]

    def text(self) -> str:
        """In the format of sha256sum, sorted, so that equal contents give equal text."""
        return "".join(f"{self.entries[name]}  {name}\n" for name in sorted(self.entries))

    def key(self) -> str:
        """The digest of the text, which a verification stamp names."""
        return hashlib.sha256(self.text().encode()).hexdigest()


def parse_manifest(text: str, origin: str) -> Manifest:
    """Read the format of sha256sum.

    Raises:
        UsageError: a line that is not ``digest  name``, a name that leaves the folder, a name given
        twice.
    """
    entries: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        digest, _, marked = line.partition(" ")
        # sha256sum writes a blank or, for binary files, a star before the name.
        name = marked[1:] if marked.startswith((" ", "*")) else marked
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef") or not name:
            message = f"{origin}:{number}: not a line of sha256sum: {line[:80]!r}"
            raise UsageError(message, "a line is the digest, two blanks and the file's name")
        if name.startswith("/") or ".." in Path(name).parts or name in entries:
            message = f"{origin}:{number}: {name!r} leaves the folder or stands there twice"
            raise UsageError(message, "run sha256sum in the model's folder, with relative names")
        entries[name] = digest.lower()
    return Manifest(entries, {})


def local_manifest(folder: Path, cache: Path) -> Manifest:
    """Hash a local folder; files that did not change since the last time are not read again.

    Args:
        cache: a JSON file that remembers digests by size, times and inode.
    """
    # Hosts that share a source wait for the first one's digests instead of reading it as well.
    with _HASHING:
        return _local_manifest(folder, cache)


_HASHING = threading.Lock()


def _local_manifest(folder: Path, cache: Path) -> Manifest:
    known = _load(cache)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(_files(folder))}
    marks = {name: _mark(path) for name, path in files.items()}
    entries, fresh = {}, []
    for name, path in files.items():
        held = known.get(str(path.resolve()))
        if held and held["mark"] == marks[name]:
            entries[name] = held["sha256"]
        else:
            fresh.append(name)
    if fresh:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            entries.update(
                zip(fresh, pool.map(lambda name: _sha256(files[name]), fresh), strict=True)
            )
        update = {
            str(files[name].resolve()): {"mark": marks[name], "sha256": entries[name]}
            for name in fresh
        }
        _store(cache, {**known, **update})
    return Manifest(entries, {name: marks[name][0] for name in files})


def _files(folder: Path) -> list[Path]:
    """Raises UsageError for a link that leads nowhere, as in a download that broke off."""
    found = [
        path
        for path in folder.rglob("*")
        if path.name != "MANIFEST.sha256"
        and str(path.relative_to(folder)).isprintable()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    for path in found:
        if path.is_symlink() and not path.exists():
            raise UsageError(
                f"{path} is a link that leads nowhere: the file is not there",
                "complete the download, or remove the link",
            )
    return [path for path in found if path.is_file()]


def _mark(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(cache: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(cache.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _store(cache: Path, known: dict[str, Any]) -> None:
    with suppress(OSError):  # it only saves time
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
        temporary.write_text(json.dumps(known), encoding="utf-8")
        temporary.replace(cache)


def wanted_manifest(
    folder: Path | None, manifest: Path | None, cache: Path, signed: str | None = None
) -> Manifest | None:
    """The manifest that a profile asks for: its file, else made from its source, else None.

    Args:
        signed: the hash that it must have (`Manifest.key`), or None.

    Raises:
        UsageError: its file cannot be read, or it is not the signed one.
    """
    found = _wanted(folder, manifest, cache)
    if found is not None and signed is not None and found.key() != signed:
        raise UsageError(
            f"the manifest of {manifest or folder} is {found.key()}, and the profile's"
            f" model.manifest_sha256 is {signed}",
            "take the files that were meant, or sign these by their hash",
        )
    return found


def _wanted(folder: Path | None, manifest: Path | None, cache: Path) -> Manifest | None:
    if manifest is not None:
        try:
            text = manifest.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise UsageError(
                f"cannot read the manifest {manifest}: {why}",
                "model.manifest names a file as `sha256sum` writes it",
            ) from error
        return parse_manifest(text, str(manifest))
    return None if folder is None else local_manifest(folder, cache)
