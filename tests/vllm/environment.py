"""Makes what the tests with real vLLM run in, and prints one line for each run of pytest.

`.venv-vllm` holds vLLM 0.32.0 for the CPU, the wheels that the demo installs. Releases that are
built for CUDA cannot run here, but their Python files import beside a CPU build of torch: those
alone are taken from their wheels (tens of megabytes, not 300), kept, and put on PYTHONPATH.

usage: python -m tests.vllm.environment [primary|others]    (in .venv, at the root of a checkout)
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import ssl
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
from glm5_deploy.demo.wheelhouse import prepare
from glm5_deploy.local_command import Word, locked, run
from glm5_deploy.run.local import cache_folder
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-vllm"
REQUIREMENTS = ROOT / "requirements" / "vllm-test.txt"
TRITON = ROOT / "requirements" / "triton-test.txt"
BLOCK = 2 << 20


@dataclass(frozen=True)
class Release:
    """A vLLM that is built for CUDA.

    Args:
        digest: sha256 of the Python files' names and bytes, as `digest_of` gives it.
    """

    version: str
    digest: str


RELEASES = (
    Release("0.26.0", "d076552da56f3f9247203ce8c4a9b02eb9b7001a79671759a18d5f76ea51b014"),
    Release("0.24.0", "b592c9dbdbde7ffd92fe89eeea8ff9700f1f55b038eca7ec1850b36d64a94c33"),
    Release("0.25.1", "b77c096e7de36be10761d9dbd541654528fa05e8afd81cbd24fe4ebac9bfd51a"),
    Release("0.27.1", "7445db297d51b5ed98a3f78406b76c663e772e5e11ddb5507af3008a9dd77223"),
    Release("0.28.0", "f5643bd9ff210ce95305e7cd1cf05bdbacac687ca739d083ed9e8c22f20d9f99"),
)


def main(which: str = "") -> None:
    wanted = {"primary": RELEASES[:1], "others": RELEASES[1:]}.get(which, RELEASES)
    with ThreadPoolExecutor() as pool:
        folders = pool.map(python_files, wanted)
        make_environment()
    for release, folder in zip(wanted, folders, strict=True):
        print(release.version, folder, ENVIRONMENT / "triton", sep="\t")


def make_environment() -> None:
    """`.venv-vllm`, made again when what belongs in it has changed."""
    wheelhouse = prepare(f"{sys.version_info.major}.{sys.version_info.minor}", _say)
    files = (wheelhouse.lock, REQUIREMENTS, TRITON)
    stamp = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    done = ENVIRONMENT / ".stamp"
    if done.is_file() and done.read_text() == stamp:
        return
    _say(f"virtual environment in {ENVIRONMENT.name}")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    run([sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT])
    _install("--no-index", "--find-links", wheelhouse.folder, "-r", wheelhouse.lock)
    _install("-r", REQUIREMENTS)
    _install("--target", ENVIRONMENT / "triton", "-r", TRITON)
    done.write_text(stamp)


def _install(*arguments: Word) -> None:
    exactly: tuple[Word, ...] = ("--no-deps", "--require-hashes", *arguments)
    python = ENVIRONMENT / "bin" / "python"
    run(
        [find_uv_bin(), "pip", "install", "--quiet", "--python", python, *exactly],
        env={"UV_SYSTEM_CERTS": "true"},
    )


def python_files(release: Release) -> Path:
    """The folder with a release's Python files; they are fetched where they are not kept yet.

    Raises:
        SystemExit: they are not the ones that the tests were written for.
    """
    base = cache_folder() / "vllm-python"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / f"{release.version}-{release.digest[:12]}"
    with locked(base / f"{release.version}.lock"):
        if not folder.is_dir():
            _say(f"fetching the Python files of vLLM {release.version}")
            _fetch(release, folder)
    return folder


def _fetch(release: Release, folder: Path) -> None:
    context = ssl.create_default_context()
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as scratch,
        httpx.Client(follow_redirects=True, timeout=180, verify=context) as client,
    ):
        wheel = zipfile.ZipFile(_open(client, release, Path(scratch)))
        names = sorted(name for name in wheel.namelist() if _wanted(name))
        unpacked = Path(scratch, "unpacked")
        wheel.extractall(unpacked, names)
        found = digest_of((name, (unpacked / name).read_bytes()) for name in names)
        if found != release.digest:
            raise SystemExit(f"vLLM {release.version}: sha256 {found}, expected {release.digest}")
        unpacked.rename(folder)


def _open(client: httpx.Client, release: Release, scratch: Path) -> IO[bytes]:
    """The wheel, from which parts can be read; whole, where its server gives no parts."""
    try:
        return io.BufferedReader(_Remote(client, _address(release)), BLOCK)
    except (httpx.HTTPError, NoPartsError):
        run([*_pip("download"), "--dest", scratch, f"vllm=={release.version}"])
        return next(scratch.glob("*.whl")).open("rb")


def _wanted(name: str) -> bool:
    inside = name.startswith("vllm/") and name.endswith((".py", ".json"))
    return inside or ".dist-info/" in name


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """sha256 over names and contents, in the order given."""
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _address(release: Release) -> str:
    """Where pip, as it is set up on this machine, would take the wheel from."""
    arguments = ("--dry-run", "--report=-", "--ignore-installed", "--target=nowhere")
    found = run([*_pip("install"), *arguments, f"vllm=={release.version}"])
    return str(json.loads(found)["install"][0]["download_info"]["url"])


def _pip(verb: str) -> list[Word]:
    return [
        sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", "--only-binary=:all:",
        "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_31_x86_64",
    ]  # fmt: skip


class NoPartsError(Exception):
    """A server sends whole files only."""


class _Remote(io.RawIOBase):
    """A file behind an address, of which only the parts that are read are fetched."""

    def __init__(self, client: httpx.Client, address: str) -> None:
        self._client, self._address, self._at = client, address, 0
        head = client.get(address, headers={"Range": "bytes=0-0"})
        if head.status_code != httpx.codes.PARTIAL_CONTENT:
            raise NoPartsError(address)
        self._size = int(head.headers["content-range"].rpartition("/")[2])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._size)
        if self._at >= end:
            return 0
        part = self._client.get(
            self._address, headers={"Range": f"bytes={self._at}-{end - 1}"}
        ).raise_for_status()
        buffer[: len(part.content)] = part.content
        self._at += len(part.content)
        return len(part.content)


def _say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
