"""The host's agent on folders of a test's own, with a systemctl that notes what it is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from glm5_deploy.onhost import agent
from glm5_deploy.run.local import parse_audit

DAY = 86400.0


class Systemd:
    """Notes commands; everything is enabled and active unless it is `down`, nothing is a running
    job.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.down = False

    def __call__(self, *words: str, check: bool = True) -> bool:  # noqa: ARG002
        self.said.append(" ".join(word for word in words if word != "--quiet"))
        if words[0] in {"is-active", "is-enabled"} and self.down:
            return False
        return not any(word.startswith("glm5-job-") for word in words)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    fake = Systemd()
    monkeypatch.setattr(agent, "systemctl", fake)
    monkeypatch.setattr(agent, "UNITS", tmp_path / "units")
    (tmp_path / "units").mkdir()
    return fake


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for name in ("state", "releases", "venvs"):
        (folder / name).mkdir(parents=True)
    return folder


def release(root: Path, name: str, service: str = "glm5-a", venv: str = "v") -> None:
    folder = root / "releases" / name
    folder.mkdir()
    (folder / "unit").write_text(f"[Service]\nSyslogIdentifier={service}\n# {name}\n")
    (folder / "profile.json").write_text(json.dumps({"venv": venv}))


def switch(root: Path, name: str, service: str = "glm5-a", within: float = 60) -> None:
    order = {"release": name, "unit": f"{service}.service", "confirm_within": within}
    agent.switch(root, root / "state", order)


def confirmed(root: Path, name: str, service: str = "glm5-a") -> None:
    switch(root, name, service)
    agent.confirm(root, root / "state", name)


def pending(root: Path) -> dict[str, Any] | None:
    return agent.read_json(root / "state" / "pending.json")


def test_another_name_of_the_service_stops_the_earlier_one(
    root: Path, systemd: Systemd, tmp_path: Path
) -> None:
    release(root, "one")
    release(root, "two", "glm5-b")
    confirmed(root, "one")
    systemd.said.clear()
    switch(root, "two", "glm5-b")
    assert systemd.said.index("disable --now glm5-a.service") < systemd.said.index(
        "restart --no-block glm5-b.service"
    )
    assert [path.name for path in (tmp_path / "units").iterdir()] == ["glm5-b.service"]
    systemd.said.clear()
    agent.revert(root, root / "state", "two", "it failed")
    assert "disable --now glm5-b.service" in systemd.said
    assert "restart --no-block glm5-a.service" in systemd.said
    unit = (tmp_path / "units" / "glm5-a.service").read_text()
    assert "# one" in unit
    assert agent.current_release(root) == "one"


def test_guards_of_earlier_names_go_with_the_confirmation(
    root: Path, systemd: Systemd, tmp_path: Path
) -> None:
    units = tmp_path / "units"
    release(root, "two", "glm5-b")
    for name, place in (("a", root), ("b", root), ("other", tmp_path / "elsewhere")):
        text = f'ExecStart=:"/usr/bin/python3" "{place}/lib/agent.py" "{place}" "check"\n'
        (units / f"glm5-{name}-confirm.service").write_text(text)
        (units / f"glm5-{name}-confirm.timer").write_text("[Timer]\n")
    confirmed(root, "two", "glm5-b")
    left = sorted(path.name for path in units.glob("*.timer"))
    assert left == ["glm5-b-confirm.timer", "glm5-other-confirm.timer"]
    assert "disable --now glm5-a-confirm.timer" in systemd.said


def test_another_runs_switch_is_not_taken_back(root: Path, systemd: Systemd) -> None:
    for name in ("one", "two", "three"):
        release(root, name)
    confirmed(root, "one")
    switch(root, "two")
    switch(root, "three")
    systemd.said.clear()
    done = agent.revert(root, root / "state", "two", "the first run gave up")
    assert done == {"reverted": None, "pending": "three", "current": "three"}
    assert systemd.said == []
    assert pending(root) is not None
    with pytest.raises(RuntimeError, match="three is pending, not two"):
        agent.confirm(root, root / "state", "two")


@pytest.mark.usefixtures("systemd")
def test_a_revert_after_the_timers_says_what_is_there(root: Path) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    switch(root, "two", within=-1)
    assert agent.check(root, root / "state")["previous"] == "one"
    again = agent.revert(root, root / "state", "two", "too late")
    assert again == {"reverted": None, "pending": None, "current": "one"}


def test_a_power_cut_before_the_switch_restarts_nothing(
    root: Path, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    activate = agent.activate
    monkeypatch.setattr(agent, "activate", lambda *_: False)
    switch(root, "two")
    monkeypatch.setattr(agent, "activate", activate)
    systemd.said.clear()
    assert agent.revert(root, root / "state", "two", "power cut")["previous"] == "one"
    assert "start --no-block glm5-a.service" in systemd.said
    assert not any("restart" in said for said in systemd.said)


def test_a_revert_that_was_cut_short_is_done_again(
    root: Path, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    switch(root, "two")
    forget = agent.forget

    def cut(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "forget", cut)
    with pytest.raises(KeyboardInterrupt):
        agent.revert(root, root / "state", "two", "it failed")
    monkeypatch.setattr(agent, "forget", forget)
    systemd.said.clear()
    agent.revert(root, root / "state", "two", "it failed")
    assert "restart --no-block glm5-a.service" in systemd.said


def test_a_damaged_previous_release_is_no_way_back(root: Path, systemd: Systemd) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    switch(root, "two")
    (root / "releases" / "one" / "unit").unlink()
    done = agent.revert(root, root / "state", "two", "it failed")
    assert "one is damaged" in str(done["reason"])
    assert "disable --now glm5-a.service" in systemd.said
    assert agent.current_release(root) is None
    assert pending(root) is None


@pytest.mark.parametrize("service", ["glm5-a", "glm5-b"])
def test_what_was_down_is_down_after_a_revert(
    root: Path, systemd: Systemd, tmp_path: Path, service: str
) -> None:
    release(root, "one")
    for name in ("two", "three"):
        release(root, name, service)
    confirmed(root, "one")
    systemd.down = True
    switch(root, "two", service)
    systemd.down = False
    switch(root, "three", service)  # replaces it, and knows what was before
    systemd.said.clear()
    done = agent.revert(root, root / "state", "three", "it failed")
    assert (done["previous"], done["down"]) == ("one", True)
    assert f"disable --now {service}.service" in systemd.said
    assert not any(said.startswith(("start", "restart", "enable")) for said in systemd.said)
    assert agent.current_release(root) == "one"
    (unit,) = (tmp_path / "units").iterdir()
    assert unit.name == "glm5-a.service"
    assert "# one" in unit.read_text()
    assert pending(root) is None


@pytest.mark.usefixtures("systemd")
def test_a_clock_that_is_set_moves_no_deadline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(root, "one")
    switch(root, "one", within=60)
    now = time.time()
    for jump in (-DAY, DAY):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        note = pending(root)
        assert note is not None
        assert 50 < agent.seconds_left(note) <= 60


@pytest.mark.usefixtures("systemd")
def test_after_a_reboot_the_whole_time_is_the_most(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(root, "one")
    switch(root, "one", within=60)
    note = pending(root)
    assert note is not None
    now = time.time()
    monkeypatch.setattr(agent, "boot", lambda: "another boot")
    monkeypatch.setattr(time, "time", lambda: now - DAY)
    monkeypatch.setattr(agent, "since_boot", lambda: 20.0)
    assert agent.seconds_left(note) == pytest.approx(40, abs=1)
    monkeypatch.setattr(time, "time", lambda: now + DAY)
    assert agent.seconds_left(note) < 0


@pytest.mark.usefixtures("systemd")
def test_pruning_takes_unfinished_environments_that_nobody_builds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(root, "one", venv="used")
    confirmed(root, "one")
    for name in ("used", "torn", "building"):
        (root / "venvs" / name).mkdir()
    running = "glm5-job-venv-building"
    monkeypatch.setattr(agent, "systemctl", lambda *words, check: running in words)  # noqa: ARG005
    assert agent.prune(root, root / "state", 0)["removed"] == ["venvs/torn"]
    assert sorted(path.name for path in (root / "venvs").iterdir()) == ["building", "used"]


@pytest.mark.usefixtures("systemd")
def test_a_full_disk_does_not_keep_a_revert_pending(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    switch(root, "two")
    write = agent.write

    def full(path: Path, text: str) -> None:
        if path.parent == root / "state":
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(agent, "write", full)
    (root / "state" / "audit.jsonl").unlink()
    (root / "state" / "audit.jsonl").mkdir()
    assert agent.revert(root, root / "state", "two", "it failed")["previous"] == "one"
    assert pending(root) is None


def test_a_torn_line_of_the_audit_log_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_text('{"at": 1, "act')
    agent.audit(tmp_path, "switch", release="one")
    agent.audit(tmp_path, "confirm", release="one")
    entries = parse_audit((tmp_path / "audit.jsonl").read_text().splitlines())
    assert [entry["action"] for entry in entries] == ["torn line", "switch", "confirm"]


def test_awkward_roots_are_recognised_in_unit_files(tmp_path: Path) -> None:
    from glm5_deploy.stages.templates import render

    root = Path('/srv/root with spaces, 100%h and $HOME; "q" ü')
    text = render(
        "confirm.service.j2", name="glm5-a", python="/usr/bin/python3",
        agent=str(root / "lib" / "agent.py"), root=str(root),
    )  # fmt: skip
    service = tmp_path / "glm5-a-confirm.service"
    service.write_text(text)
    assert agent.watches(service, root)
    assert not agent.watches(service, Path("/srv/root"))


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"release": "two"}'])
def test_a_torn_note_is_no_pending_switch(root: Path, text: str) -> None:
    release(root, "one")
    release(root, "two")
    confirmed(root, "one")
    (root / "state" / "pending.json").write_text(text)
    assert agent.check(root, root / "state") == {"pending": None}
    switch(root, "two")
    note = pending(root)
    assert note is not None
    assert note["previous"] == "one"


@pytest.mark.usefixtures("systemd")
def test_a_folder_in_the_place_of_a_link_is_named(root: Path) -> None:
    release(root, "one")
    (root / "current").mkdir()
    with pytest.raises(RuntimeError, match="should be a link"):
        switch(root, "one")
