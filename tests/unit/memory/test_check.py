"""From a GGUF header on a host to a row of preflight, without a machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.errors import CommandFailedError
from glm5_deploy.hosts.fake import FakeHost
from glm5_deploy.memory.check import NotPlannedError, memory_plan, row_of, rows
from glm5_deploy.memory.header import HeaderError, Place, inspect_place, shape_of
from glm5_deploy.memory.table import as_data
from glm5_deploy.memory.table import rows as table_rows
from glm5_deploy.stages.desired import Desired
from glm5_deploy.stages.observed import Observed

from tests.unit.gguf.support import GLM5, SMALL, write_model
from tests.unit.stages.situation import bare, changed, complete, desired, gpus

FOLDER = PurePosixPath("/opt/glm5/models/tiny")


def on_host(tmp_path: Path, split: int = 3) -> tuple[FakeHost, list[str]]:
    """A small model that lies on a host, and its files' names."""
    paths = write_model(tmp_path, SMALL, split=split)
    files = {FOLDER / path.name: path.read_bytes() for path in paths}
    return FakeHost(files=files), [path.name for path in paths]


def wanted(serve: str, *, count: int = 2, source: str | None = None, **args: object) -> Desired:
    return desired(
        model={"name": "tiny", "source": source, "serve": serve},
        gpus={"count": count},
        serve={"args": {"tensor-parallel-size": count, "max-model-len": 4096, **args}},
    )


def with_gpus(count: int = 8, **more: object) -> Observed:
    observed = bare()
    return replace(observed, system=replace(observed.system, gpus=gpus(count, **more)))


def test_a_header_on_a_host_is_read_in_parts(tmp_path: Path) -> None:
    host, names = on_host(tmp_path)
    made = memory_plan(host, wanted(names[1]).target, with_gpus())
    assert made.fits
    assert made.model.tp == 2
    assert as_data(made)["kv_bytes_per_token"] == made.model.kv["bf16"]
    assert any(name == "KV cache" for name, *_ in table_rows(made))
    assert {call.kind for call in host.calls} == {"get"}


def test_the_full_glm5_on_eight_gpus(tmp_path: Path) -> None:
    """Q4_K: 50 GiB on each of eight; 78 layers of 1,152 B and as many indexers of 132 B a token."""
    paths = write_model(tmp_path, GLM5, quant="Q4_K", split=9)
    found = inspect_place(Place(str(paths[0])), tps=(8,))
    shape = shape_of(found, 8)
    assert shape.kv == {"bf16": 78 * (1152 + 132), "fp8": 78 * (656 + 132)}
    assert 45 << 30 < shape.weights < 55 << 30
    source = wanted(paths[0].name, count=8, source=str(tmp_path), **{"max-model-len": 131072})
    made = memory_plan(FakeHost(), source.target, with_gpus())
    assert made.fits
    assert made.kv_tokens > 131_072
    said = row_of(made).detail
    assert f" GiB on each of 8, KV cache {made.kv / (1 << 30):.1f} GiB = " in said
    assert said.endswith(f" {made.kv_tokens:,} tokens, {made.sequences:.1f} requests of 131,072")
    alone = replace(made, model=replace(made.model, tp=1), sequences=2988.07)
    assert " each " not in row_of(alone).detail
    assert " 2,988.1 requests of " in row_of(alone).detail


def test_a_number_of_gpus_that_the_model_cannot_be_cut_among(tmp_path: Path) -> None:
    host, names = on_host(tmp_path, split=1)
    (row,) = rows(host, wanted(names[0], count=3), with_gpus())
    assert row.status == "failed"
    assert "4 heads are no multiple of 3" in row.detail
    with pytest.raises(HeaderError):
        memory_plan(host, wanted(names[0], count=3).target, with_gpus())


def test_what_does_not_fit_is_refused_with_the_remedy(tmp_path: Path) -> None:
    host, names = on_host(tmp_path)
    tight = wanted(names[0], **{"gpu-memory-utilization": 0.01})
    (row,) = rows(host, tight, with_gpus())
    assert row.status == "failed"
    assert row.hint is not None
    assert "gpu-memory-utilization: 0.95" in row.hint


def test_our_own_server_gives_its_memory_back(tmp_path: Path) -> None:
    host, names = on_host(tmp_path)
    want = wanted(names[0])
    serving = complete(want)
    full = gpus(8, memory_used=90 << 30)
    serving = replace(serving, system=replace(serving.system, gpus=full))
    assert rows(host, want, serving)[0].status == "passed"
    (stranger,) = rows(host, want, with_gpus(memory_used=90 << 30))
    assert "end what holds their memory" in (stranger.hint or "")


def test_there_is_nothing_to_say_without_gguf_or_gpus(tmp_path: Path) -> None:
    host, names = on_host(tmp_path)
    assert rows(host, wanted("."), with_gpus()) == ()
    assert rows(host, wanted(names[0]), bare()) == ()
    assert rows(host, desired(), with_gpus()) == ()


def test_files_that_are_not_there_yet(tmp_path: Path) -> None:
    host, names = on_host(tmp_path)
    (row,) = rows(FakeHost(), wanted(names[0]), with_gpus())
    assert row.status == "skipped"
    with pytest.raises(NotPlannedError, match="is not there yet") as caught:
        memory_plan(FakeHost(), wanted(names[0]).target, with_gpus())
    assert "model sync" in (caught.value.hint or "")
    del host.files[FOLDER / names[2]]
    (row,) = rows(host, wanted(names[0]), with_gpus())
    assert row.status == "failed"
    assert names[2] in row.detail
    with pytest.raises(NotPlannedError, match="serves no GGUF"):
        memory_plan(host, wanted(".").target, changed(with_gpus()))


def test_a_folder_that_may_not_be_looked_at_is_no_missing_file() -> None:
    class Closed(FakeHost):
        def size(self, path: PurePosixPath) -> int | None:
            raise CommandFailedError(f"{self.name}: cannot read {path}: Permission denied")

    (row,) = rows(Closed(), wanted("m.gguf"), with_gpus())
    assert (row.status, row.detail) == (
        "skipped",
        "node1: cannot read /opt/glm5/models/tiny/m.gguf: Permission denied",
    )
