"""What is kept on the operator's machine: torn files, several runs at once, places that refuse."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from glm5_deploy.cli.runner import kept_here
from glm5_deploy.run import local
from glm5_deploy.stages.manifest import local_manifest


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "glm5-deploy"


def test_a_killed_run_leaves_half_a_line_and_nothing_is_lost(state: Path) -> None:
    local.audit("up", {}, 1.0, 0)
    with (state / "audit.jsonl").open("a") as file:
        file.write('{"at": 3, "comm')
    local.audit("down", {}, 1.0, 0)
    found = local.read_audit(10)
    assert [e.get("command", e.get("action")) for e in found] == ["up", "torn line", "down"]
    assert len(local.read_audit(1)) == 1


def test_runs_beside_each_other_remember_all_hosts() -> None:
    names = [f"host{number}" for number in range(40)]
    threads = [
        threading.Thread(target=local.remember_outcomes, args=("key", {name: "failed"}))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(local.failed_hosts("key")) == sorted(names)


def test_a_place_that_refuses_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with kept_here():
        local.audit("up", {}, 1.0, 0)
    assert "not remembered here" in capsys.readouterr().err


def test_hosts_that_share_a_source_hash_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glm5_deploy.stages import manifest

    source, read, hashed = tmp_path / "model", manifest._sha256, []
    source.mkdir()
    for number in range(5):
        (source / f"{number}.safetensors").write_bytes(b"x" * number)

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return read(path)

    monkeypatch.setattr(manifest, "_sha256", counted)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(local_manifest(source, tmp_path / "digests.json"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert sorted(hashed) == [f"{number}.safetensors" for number in range(5)]


def test_digests_need_no_cache(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"a")
    assert set(local_manifest(tmp_path, Path("/proc/nowhere/digests.json")).entries) == {"a.gguf"}
