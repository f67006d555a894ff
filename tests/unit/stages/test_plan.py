"""Facts and what is wanted → the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from glm5_deploy.hosts.facts.python import Python
from glm5_deploy.stages.plan import plan
from syrupy.assertion import SnapshotAssertion

from tests.unit.stages.situation import (
    FILES,
    MANIFEST,
    bare,
    changed,
    complete,
    desired,
    planned,
    system,
    unit,
    written,
)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "engine.txt"
    path.write_text("engine==1.0 --hash=sha256:00\n")
    return path


def test_a_bare_host_gets_everything_in_order(lock: Path, snapshot: SnapshotAssertion) -> None:
    wanted = desired(
        lock, {"wheelhouse": "/here/wheels"}, engine={"python": "3.11", "kernel": True}
    )
    text = written(plan(wanted, bare())).replace(wanted.release.identifier, "RELEASE")
    assert wanted.venv is not None
    name = wanted.venv.identifier
    # long lines are cut, at this place within the name
    assert text.replace(name, "VENV").replace(f"{name[:8]}…", "VENV…") == snapshot


def test_a_complete_host_gets_nothing(lock: Path) -> None:
    wanted = desired(lock)
    assert plan(wanted, complete(wanted)) == []


def test_a_bare_machine_gets_packages_first() -> None:
    wanted = desired()
    lacking = replace(
        bare(),
        system=system(pythons=(), libraries=frozenset(), tools={"apt-get": "/usr/bin/apt-get"}),
    )
    assert planned(wanted, lacking)[0] == (
        "system install rsync gcc libc6-dev libnuma1 python3.11 python3.11-dev"
    )


def test_python_without_headers_gets_them() -> None:
    path = PurePosixPath("/usr/bin/python3.11")
    observed = replace(bare(), system=system(pythons=(Python(path, (3, 11, 2), False),)))
    assert planned(desired(), observed)[0] == "system install python3.11-dev"
    without = desired(needs={"compiler": False})
    assert planned(without, observed)[0] == "system create user glm5"


def test_a_python_can_be_carried(tmp_path: Path) -> None:
    wanted = desired(settings={"python_tree": str(tmp_path)}, engine={"python": "3.12"})
    assert f"system sync {PurePosixPath('/opt/glm5/python/3.12')}" in planned(wanted, bare())
    path = PurePosixPath("/opt/glm5/python/3.12/bin/python3.12")
    there = replace(bare(), system=system(pythons=(Python(path, (3, 12, 1), True),)))
    assert not [line for line in planned(wanted, there) if "sync /opt/glm5/python" in line]


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({"releases": ()}, ["release create ID"]),
        ({"current": "older"}, ["service switch ID"]),
        ({"user_exists": False}, ["system create user glm5"]),
        ({"model_stamp": None}, ["model sync /opt/glm5/models/tiny"]),
        ({"model_files": {"w.gguf": FILES["w.gguf"]}}, ["model sync /opt/glm5/models/tiny"]),
        ({"model_files": None}, ["model sync /opt/glm5/models/tiny"]),
        ({"pending": {"release": "ID", "previous": "older"}}, ["service confirm ID"]),
        ({"pending": {"release": "other", "previous": "older"}}, ["service switch ID"]),
    ],
)  # fmt: skip
def test_what_differs_is_what_changes(facts: dict[str, object], lines: list[str]) -> None:
    wanted = desired()
    name = wanted.release.identifier
    if isinstance(facts.get("pending"), dict):
        pending = dict(facts["pending"])  # type: ignore[call-overload]
        facts = {"pending": {**pending, "release": pending["release"].replace("ID", name)}}
    observed = changed(complete(wanted), **facts)
    assert planned(wanted, observed) == [line.replace("ID", name) for line in lines]


@pytest.mark.parametrize("touched", ["size", "mtime", "ctime", "inode"])
def test_a_touched_model_file_is_read_again(touched: str) -> None:
    wanted = desired()
    state = replace(FILES["w.gguf"], **{touched: 99})
    observed = changed(complete(wanted), model_files={**FILES, "w.gguf": state})
    changes = plan(wanted, observed)
    assert [c.action for c in changes] == ["sync"]
    by_content = "by content" in written(changes)
    assert by_content is (touched != "size")


def test_a_model_on_the_host_is_verified_not_synced() -> None:
    wanted = desired(model={"name": "tiny", "path": "/data/tiny"})
    observed = changed(complete(wanted), model_stamp=None)
    assert planned(wanted, observed) == ["model verify /data/tiny"]
    unknown = replace(wanted, manifest=None)
    fresh = changed(observed, model_manifest=None)
    assert planned(unknown, fresh) == ["model create /opt/glm5/state/tiny.sha256"]
    assert MANIFEST.text()


@pytest.mark.parametrize(
    ("state", "lines"),
    [
        ("inactive", ["service start glm5-tiny.service"]),
        ("failed", ["service start glm5-tiny.service"]),
        ("activating", []),
        ("active", []),
    ],
)
def test_a_stopped_service_is_started(state: str, lines: list[str]) -> None:
    wanted = desired()
    stopped = unit(LoadState="loaded", ActiveState=state, UnitFileState="enabled")
    assert planned(wanted, replace(complete(wanted), unit=stopped)) == lines


def test_a_running_service_that_does_not_start_at_boot_is_enabled_not_restarted() -> None:
    wanted = desired()
    running = unit(LoadState="loaded", ActiveState="active", UnitFileState="disabled")
    assert planned(wanted, replace(complete(wanted), unit=running)) == [
        "service enable glm5-tiny.service"
    ]


def test_a_secret_is_in_no_plan(lock: Path) -> None:
    changes = plan(desired(lock), bare())
    shown = repr(changes) + "".join(change.diff or "" for change in changes) + written(changes)
    assert "s3cret" not in shown


def test_a_changed_secret_is_a_new_release() -> None:
    from glm5_deploy.hosts.command import Secret
    from glm5_deploy.stages.desired import build_desired

    target = desired().target

    def release(value: str) -> str:
        made = build_desired(
            target,
            resolve_secret=lambda _: Secret(value),
            kernel_wheel=lambda: Path("none"),
            manifest=lambda _: MANIFEST,
        )
        return made.release.identifier

    assert release("one") == release("one") != release("two")


def test_expectations_and_limits_are_no_new_release_but_arguments_are() -> None:
    base = desired().release.identifier
    assert desired(limits={"load": 7}).release.identifier == base
    assert desired(smoke={"max_tokens": 3}).release.identifier == base
    assert desired(serve={"args": {"max-model-len": 7}}).release.identifier != base
    assert desired(environment={"A": "1"}).release.identifier != base
    assert desired(unit={"nofile": 4096}).release.identifier != base


def test_the_profiles_own_packages_are_installed_where_they_are_absent() -> None:
    wanted = desired(needs={"packages": ["jq", "numactl"]})
    observed = changed(bare(), absent_packages=("numactl",))
    assert planned(wanted, observed)[0] == "system install numactl"


def test_a_lock_may_lie_anywhere(lock: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "engine.txt"
    other.parent.mkdir()
    other.write_bytes(lock.read_bytes())
    assert desired(lock).release.identifier == desired(other).release.identifier


def test_any_python_serves_where_the_engine_brings_its_own() -> None:
    engine = {"command": ["/opt/vllm/bin/vllm", "serve", "{model}"]}
    wanted = desired(engine={"python": "3.12", **engine})
    assert planned(wanted, bare())[0] == "system create user glm5"
    with_python = desired(engine={"python": "3.12"})
    assert "python3.12" not in " ".join(planned(with_python, bare()))


def test_a_current_release_that_was_edited_is_written_and_started_anew() -> None:
    wanted = desired()
    there = complete(wanted)
    files = dict(there.deployment.files or {})
    files[str(wanted.paths.current / "environment")] = "HOME=/elsewhere\n"
    name = wanted.release.identifier
    assert planned(wanted, changed(there, files=files)) == [
        f"release create {name}", f"service switch {name}",
    ]  # fmt: skip
    assert planned(wanted, changed(there, releases=())) == [f"release create {name}"]
