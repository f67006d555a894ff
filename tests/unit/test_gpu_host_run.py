"""What a GPU machine runs (tests/gpu/host/run.py), as far as it needs no GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.config.load import load_inventory

from tests.gpu.host import page, run
from tests.gpu.host.walk import WalkError, steps


@pytest.fixture
def session(tmp_path: Path) -> run.Session:
    model = tmp_path / "models" / "glm-5"
    model.mkdir(parents=True)
    for number in (1, 2):
        (model / f"glm5-0000{number}-of-00002.gguf").touch()
    return run.Session(
        tmp_path, Path("/opt/site"), model.parent, tmp_path / "h", tmp_path, "/usr/bin/python3"
    )


def options(**more: Any) -> argparse.Namespace:  # noqa: ANN401
    return argparse.Namespace(**{"tp": 1, "gpus": None, "eager": False, **more})


def golden(folder: Path, *pairs: tuple[float, float]) -> None:
    prompts = [{"name": str(n), "margin": m, "rounding": r} for n, (m, r) in enumerate(pairs)]
    (folder / "golden.json").write_text(json.dumps({"format": 1, "prompts": prompts}))


def test_only_answers_that_rounding_cannot_turn_are_golden(tmp_path: Path) -> None:
    golden(tmp_path, (0.7, 0.1), (0.5, 0.1), (0.2, 0.01))
    kept = run.firm_golden(tmp_path, tmp_path / "kept.json")
    assert kept is not None
    assert [each["name"] for each in json.loads(kept.read_text())["prompts"]] == ["0", "2"]


def test_no_golden_answers_are_none(tmp_path: Path) -> None:
    assert run.firm_golden(tmp_path, tmp_path / "kept.json") is None
    golden(tmp_path, (0.1, 0.1))
    assert run.firm_golden(tmp_path, tmp_path / "kept.json") is None


def test_the_walk_is_whole_on_one_gpu_and_short_on_two(session: run.Session) -> None:
    assert [each.name for each in run.chosen_steps(session, 1)] == [
        each.name for each in steps(memory=True)
    ]
    names = [each.name for each in run.chosen_steps(session, 2)]
    assert names == [
        "preflight", "up", "smoke", "memory", "logs", "custom-all-reduce", "custom-smoke",
        "custom-logs", "status", "down",
    ]  # fmt: skip


def test_the_second_server_may_have_graphs_and_a_plan_of_its_own(session: run.Session) -> None:
    walk = {each.name: each for each in run.chosen_steps(session, 2, graphs=True)}
    assert list(walk)[5:8] == ["custom-all-reduce", "custom-memory", "custom-logs"]
    up, memory = walk["custom-all-reduce"], walk["custom-memory"]
    assert up.override == memory.override == walk["down"].override
    assert up.override["serve"]["args"] == {
        "disable-custom-all-reduce": False, "enforce-eager": None,
    }  # fmt: skip
    memory.check({"memory": {"graphs": 7, "planned_over_measured": {"weights": 1.0}}}, {})
    assert json.loads((session.out / "memory-graphs.json").read_text())["graphs"] == 7
    assert not (session.out / "memory.json").exists()
    assert session.problems == ["vLLM's journal says nothing of kv_tokens"]


def test_a_plan_that_is_off_is_noted_and_the_walk_goes_on(session: run.Session) -> None:
    def wrong(*_: Any) -> None:  # noqa: ANN401
        raise WalkError("weights: planned 1.5")

    run.noted(session, wrong)({"memory": {"weights": 1}}, {})
    assert session.problems == ["weights: planned 1.5"]
    assert json.loads((session.out / "memory.json").read_text()) == {"weights": 1}


def test_a_benchmark_that_could_not_be_made_is_noted(session: run.Session) -> None:
    bench = next(each for each in run.chosen_steps(session, 1) if each.name == "bench")
    assert bench.exit_code is None
    bench.check({"checks": [], "error": {"message": "nothing is deployed here"}}, {})
    bench.check({"checks": [{"name": "8 at once", "status": "failed"}], "error": None}, {})
    bench.check({"checks": [{"name": "8 at once", "status": "passed"}], "error": None}, {})
    assert [text[:12] for text in session.problems] == ["not measured", "checks faile"]
    assert not (session.out / "memory.json").exists()


def test_the_inventory_holds_and_names_what_was_asked(session: run.Session) -> None:
    folder = session.models / "glm-5"
    path = run.write_inventory(session, folder, None, options(tp=2, gpus=[1, 3], eager=True))
    document = yaml.safe_load(path.read_text())["hosts"]["gpu1"]
    assert document["vars"]["gguf"] == "glm5-00001-of-00002.gguf"
    assert document["override"]["gpus"]["devices"] == [1, 3]
    assert document["override"]["smoke"]["golden"] is None
    assert document["override"]["serve"]["args"]["enforce-eager"] is True
    load_inventory(path)  # raises where a key or a value is not right


def test_tools_of_the_host_run_with_its_libraries(session: run.Session) -> None:
    (session.host / "x/usr/bin").mkdir(parents=True)
    (session.host / "x/usr/bin/ssh").write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
    (session.host / "x/usr/bin/ssh").chmod(0o755)
    folder = run.write_tools(session)
    assert [path.name for path in folder.iterdir()] == ["ssh"]
    assert str(session.host / "x/usr/lib/x86_64-linux-gnu") in (folder / "ssh").read_text()


LINE = (
    "(Worker_TP0 pid=1) INFO Using {} all-reduce backends (in dispatch order) for group '{}' out of"
)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ([("['PYNCCL']", "tp:0"), ("['CUSTOM', 'PYNCCL']", "tp:0")], True),
        ([("['PYNCCL']", "tp:0"), ("['PYNCCL']", "tp:0")], False),
        ([("['CUSTOM', 'PYNCCL']", "tp:0"), ("['CUSTOM', 'PYNCCL']", "tp:0")], False),
        ([("['PYNCCL']", "tp:0"), ("['CUSTOM', 'PYNCCL']", "ep:0")], False),
        ([], False),
    ],
)
def test_custom_all_reduce_is_judged_by_what_vllm_says(
    session: run.Session, said: list[tuple[str, str]], right: bool
) -> None:
    journal = "\n".join(LINE.format(*each) for each in said)
    (session.out / "host-journal.txt").write_text(journal)
    run.judge_all_reduce(session)
    assert bool(session.problems) != right


@pytest.mark.parametrize(("tp", "told"), [(1, False), (2, True)])
def test_nccl_tells_its_ways_where_there_are_several_gpus(
    session: run.Session, tp: int, told: bool
) -> None:
    path = run.write_inventory(session, session.models / "glm-5", None, options(tp=tp))
    host = yaml.safe_load(path.read_text())["hosts"]["gpu1"]
    assert ("NCCL_DEBUG" in host["override"]["environment"]) == told


NCCL = """\
gpu1:71:71 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
gpu1:71:71 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""


def test_the_page_keeps_a_walk_that_is_not_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    step = {"name": "up", "command": "glm5-deploy up", "exit_code": 0, "seconds": 1.0,
            "status": "changed", "release": "abc", "checks": [], "error": None}  # fmt: skip
    for name, journal in (("one", ""), ("two", LINE.format("['PYNCCL']", "tp:0") + "\n" + NCCL)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps([step]))
        (folder / "commit").write_text("abc\n")
        (folder / "host-journal.txt").write_text(journal)
        (folder / "02-explained.txt").write_text("gpu1: unknown-parser  (08:03:18)\n  No: such\n")
    memory = {"graphs": 900 << 20, "planned_over_measured": {"kv_tokens": 0.99, "graphs": 12.5}}
    (tmp_path / "two" / "memory-graphs.json").write_text(json.dumps(memory))
    page.main(f"h200={tmp_path / 'one'}")
    page.main(f"h200-x2={tmp_path / 'two'}")
    text = (tmp_path / "page.md").read_text()
    assert text.index("## One H200") < text.index("## Two H200s")
    assert text.count("| up | `glm5-deploy up` | 0 | 1.0 | changed, release abc |") == 2
    assert "as the journal has it: PYNCCL." in text
    assert text.count("Over all these starts `logs --explain` named `unknown-parser`.") == 2
    assert text.count("Of commit `abc`.") == 2
    assert "With CUDA graphs, memory as planned" in text
    assert "CUDA graphs 12.500. The plan leaves 900 MiB" in text
    assert "those of this one took 72." in text
    assert "NCCL connected the GPUs by `P2P/CUMEM/read`." in text
